"""What a run is: frozen dataclasses, a docstring per field, JSON round trip. No logic beyond checking, no task names.

`Config` holds all that changes a result and is therefore the run's identity; `Runtime` holds what does not
(device, threads, paths, when to pause). Budgets and intervals are in env steps; schedules inside an algorithm count
agent steps and say so in their names.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tyro

from .envs.atari import AtariProtocol
from .errors import UserError


@dataclass(frozen=True)
class EnvironmentConfig:
    """How the task is shown and played."""

    observation: Literal["pixels", "state"] = "pixels"
    """What the agent sees: camera pixels, or the proprioceptive state."""
    size: int = 100
    """Height and width of a rendered frame, before any crop."""
    action_repeat: int = 4
    """Env steps per agent step."""
    frame_stack: int = 3
    """Frames in one observation."""
    camera: int = 0
    """Which of the task's cameras to look through."""
    shadows: Literal["paper", "fast"] = "paper"
    """`fast` draws DMControl's shadows from a map of 512 instead of 2048: twice the rate, hardly a pixel changed."""
    protocol: AtariProtocol | None = None
    """Atari only: every choice of the benchmark's protocol."""


@dataclass(frozen=True)
class ContrastiveConfig:
    """The paper's objective, as SAC uses it."""

    weight: float = 1.0
    """Weight of the contrastive loss; 0 leaves it out."""
    step: Literal["own", "joint", "authors"] = "own"
    """Who steps the trunk: `own` gives the contrastive loss an Adam of its own, from the critic's forward pass;
    `joint` adds it to the critic's loss; `authors` follows the released code (a fresh pass, two Adams)."""
    similarity: Literal["bilinear", "cosine"] = "bilinear"
    """Bilinear q W k (the paper) or cosine."""
    temperature: float = 1.0
    """Logits are divided by this. The paper has none (1); its cosine ablation needs one (0.1)."""
    momentum: bool = True
    """Keys come from the moving average of the query encoder (the paper), or from the query encoder itself."""


@dataclass(frozen=True)
class SACConfig:
    """Soft actor-critic, from pixels or from states (the paper's table of hyperparameters)."""

    batch_size: int = 512
    """Transitions per update."""
    replay_capacity: int = 100_000
    """Transitions kept."""
    first_random_agent_steps: int = 1_000
    """Uniformly random actions, and no learning, before this agent step."""
    updates_per_agent_step: int = 1
    """Updates for each decision."""
    discount: float = 0.99
    """γ per agent step."""

    augmentation: Literal["crop", "none"] = "crop"
    """What every branch sees of a stored stack: a random crop, or the stack itself."""
    crop_size: int = 84
    """Height and width of the crop."""
    crop_offsets: Literal["all", "authors"] = "all"
    """`authors` never draws the last offset, as the released code's exclusive bound does."""

    contrastive: ContrastiveConfig = field(default_factory=ContrastiveConfig)
    """The contrastive objective."""

    filters: int = 32
    """Channels of each of the four 3×3 convolutions."""
    feature_size: int = 50
    """Length of a projected observation."""
    projection_hidden: int = 0
    """Width of a hidden layer in the projection; 0 has none (the released code). The paper's text says 1024."""
    projection_tanh: bool = False
    """Squash the projection by tanh (the paper's text); the released code does not."""
    hidden_size: int = 1024
    """Width of the two hidden layers of actor and critics."""
    log_std_min: float = -10.0
    """Least log σ of the policy."""
    log_std_max: float = 2.0
    """Greatest log σ of the policy."""

    learning_rate: float = 1e-3
    """Adam's rate for trunk, projections, W, critics and actor."""
    alpha_learning_rate: float = 1e-4
    """Adam's rate for the temperature."""
    alpha_beta1: float = 0.5
    """Adam's β₁ for the temperature."""
    initial_alpha: float = 0.1
    """The temperature at the start."""

    actor_every_agent_steps: int = 2
    """Actor and temperature learn on every so many agent steps."""
    target_every_agent_steps: int = 2
    """The moving averages move on every so many agent steps."""
    encoder_tau: float = 0.05
    """target ← (1 − τ) target + τ online, for the key encoder; the paper's momentum m is 1 − τ."""
    critic_tau: float = 0.01
    """The same for the critic's heads."""

    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """Arithmetic of trunk and dense layers: `auto` takes bf16 where the device has it; the run records what it took."""


@dataclass(frozen=True)
class RandomConfig:
    """The uniform policy: the floor of every table, and a check of protocol and plumbing."""


AgentConfig = SACConfig | RandomConfig


@dataclass(frozen=True)
class EvaluationConfig:
    """Evaluation on environments of its own."""

    every_env_steps: int = 10_000
    """Env steps between evaluations; 0 evaluates only at the end."""
    also_at_env_steps: tuple[int, ...] = (100_000, 500_000)
    """Env steps at which to evaluate in any case: the marks at which the field compares."""
    episodes: int = 10
    """Episodes in each evaluation."""


@dataclass(frozen=True)
class Config:
    """One trial. Equal configs on equal machines give equal runs."""

    task: Annotated[str, tyro.conf.Suppress]
    """The task's plain name."""
    preset: Annotated[str, tyro.conf.Suppress]
    """The method: a row of `curl-rl presets`."""
    agent: AgentConfig
    """The agent's hyperparameters."""
    seed: int = 0
    """Decides every random number of the run."""
    env_steps: int = 100_000
    """The budget: simulator steps, including those inside the action repeat."""
    env: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    """The environment."""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    """When and how to evaluate."""

    @property
    def agent_steps(self) -> int:
        """The budget in decisions of the agent."""
        return -(-self.env_steps // self.env.action_repeat)


@dataclass(frozen=True)
class Runtime:
    """How and where a run is carried out: nothing here changes a result."""

    directory: Path | None = None
    """The run directory; by default runs/TASK/PRESET/seed-N."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`, …; `auto` takes a GPU where there is one."""
    threads: int = 0
    """CPU threads for arithmetic; 0 takes the cores of the machine."""
    stop_after: str | None = None
    """Pause after this long (`9m`, `2h`): the run is saved, and the same command goes on."""
    checkpoint_every: str = "5m"
    """Time between checkpoints; every evaluation ends with one as well."""
    log_every_agent_steps: int = 100
    """Agent steps between rows of metrics; a multiple of an agent's periods shows all of its losses in each row."""
    replay_file: Path | None = None
    """Keep the replay's frames in this file (memory-mapped) instead of in memory."""

    @property
    def stop_after_seconds(self) -> float | None:
        return None if self.stop_after is None else seconds(self.stop_after, "--stop-after")

    @property
    def checkpoint_seconds(self) -> float:
        return seconds(self.checkpoint_every, "--checkpoint-every")


def seconds(text: str, flag: str) -> float:
    """'90s', '9m', '2h' or '1.5h' in seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text.strip())
    if match is None:
        raise UserError(f"{flag} is {text!r}, but must be a number with a unit, such as 90s, 9m or 2h.")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]


T = TypeVar("T")


def to_json(value: Any) -> Any:
    """A config as plain JSON values. Agents carry their kind, so that the way back needs no guess."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"kind": type(value).__name__, **fields} if isinstance(value, AgentConfig) else fields
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def from_json(cls: type[T], data: Any, where: str = "config") -> T:
    """The way back, strict: unknown fields and wrong types are refused by name."""
    return typing.cast(T, _decode(cls, data, where))


def _decode(kind: Any, data: Any, where: str) -> Any:
    if kind is AgentConfig:
        return _decode_agent(data, where)
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(typing.cast(type, kind), data, where)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        if data in arguments:
            return data
        raise UserError(f"{where} is {data!r}, but must be one of {', '.join(map(repr, arguments))}.")
    if origin is Annotated:
        return _decode(arguments[0], data, where)
    if origin in (types.UnionType, typing.Union):  # only X | None occurs besides the agents
        inner = next(a for a in arguments if a is not type(None))
        return None if data is None else _decode(inner, data, where)
    if origin is tuple and isinstance(data, list):
        return tuple(_decode(arguments[0], item, where) for item in data)
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if kind is Path and isinstance(data, str):
        return Path(data)
    if not isinstance(kind, type) or not isinstance(data, kind) or (kind is int and isinstance(data, bool)):
        raise UserError(f"{where} is {data!r}, but must be of type {getattr(kind, '__name__', kind)}.")
    return data


def _decode_agent(data: Any, where: str) -> Any:
    kinds = {cls.__name__: cls for cls in typing.get_args(AgentConfig)}
    if not isinstance(data, dict) or data.get("kind") not in kinds:
        raise UserError(f"{where} must be an object whose kind is one of {', '.join(kinds)}; found {data!r:.80}.")
    return _decode_dataclass(kinds[data["kind"]], {k: v for k, v in data.items() if k != "kind"}, where)


def _decode_dataclass(cls: type, data: Any, where: str) -> Any:
    if not isinstance(data, dict):
        raise UserError(f"{where} must be an object, but is {data!r:.80}.")
    hints = typing.get_type_hints(cls)
    for name in data:
        if name not in hints:
            raise UserError(f"{where} has no field {name!r}{suggestion(name, hints)}.")
    return cls(**{name: _decode(hints[name], value, f"{where}.{name}") for name, value in data.items()})


def suggestion(name: str, known: typing.Iterable[str]) -> str:
    """'; did you mean …?' where something known is close, otherwise nothing."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def differences(old: Config, new: Config) -> list[str]:
    """The fields in which two configs differ, as 'agent.batch_size: 512 → 128'."""
    a, b = _flatten(to_json(old)), _flatten(to_json(new))
    return [
        f"{key}: {a.get(key)!r} → {b.get(key)!r}" for key in sorted(a.keys() | b.keys()) if a.get(key) != b.get(key)
    ]


def _flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {prefix: value}
    return {k: v for name, item in value.items() for k, v in _flatten(item, f"{prefix}.{name}".lstrip(".")).items()}
