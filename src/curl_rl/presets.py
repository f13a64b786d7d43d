"""The paper as rows: every method an override of one default, every task's settings. Nothing else.

A config is built in this order: the preset, then the task's row, then the flags of the command line.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .config import AgentConfig, Config, RandomConfig, SACConfig, suggestion
from .envs import resolve
from .envs.atari import AtariProtocol
from .errors import UserError

Overrides = Mapping[str, Any]
"""Dotted field names to values, for example {"env.size": 84}."""


@dataclass(frozen=True)
class Preset:
    """One method."""

    summary: str
    """What it is, in a sentence, with the place in the paper."""
    agent: AgentConfig
    """The kind of agent, with its defaults."""
    overrides: Overrides = field(default_factory=dict)
    """What differs from those defaults."""
    deaf_to: tuple[str, ...] = ()
    """Fields in which the task's row does not speak for this method."""


PRESETS: dict[str, Preset] = {
    "curl-sac": Preset(
        "SAC with the contrastive objective, known bugs mended: the paper's method for DMControl.", SACConfig()
    ),
    "curl-sac-authors": Preset(
        "The same as the released code does it: its order of steps, its doubled encoder step, its crop.",
        SACConfig(),
        {"agent.contrastive.step": "authors", "agent.crop_offsets": "authors"},
    ),
    "rad": Preset(
        "Crops without the contrastive loss (paper, Connection to RAD).", SACConfig(), {"agent.contrastive.weight": 0.0}
    ),
    "pixel-sac": Preset(
        "SAC from rendered 84×84 pixels, no crop, no contrastive loss (Table 1, Pixel SAC).",
        SACConfig(),
        {"agent.contrastive.weight": 0.0, "agent.augmentation": "none", "env.size": 84},
    ),
    "state-sac": Preset(
        "SAC from the proprioceptive state at action repeat 1 (Table 1, State SAC).",
        SACConfig(),
        {
            "agent.contrastive.weight": 0.0,
            "agent.augmentation": "none",
            "env.observation": "state",
            "env.frame_stack": 1,
            "env.action_repeat": 1,
        },
        deaf_to=("env.action_repeat",),
    ),
    "random": Preset("Uniformly random actions (Table 2, Random).", RandomConfig()),
}

# Rows of the tasks: action repeat and learning rate of the paper's table of hyperparameters.
TASK_ROWS: dict[str, Overrides] = {
    "finger-spin": {"env.action_repeat": 2},
    "walker-walk": {"env.action_repeat": 2},
    "cartpole-swingup": {"env.action_repeat": 8},
    "cheetah-run": {"agent.learning_rate": 2e-4},
}

# Rows of whole kinds of tasks, beneath the task's own.
KIND_ROWS: dict[str, Overrides] = {
    "dmc": {},
    "atari": {
        "env.protocol": AtariProtocol(),
        "env.size": 84,
        "env.frame_stack": 4,
        "env.action_repeat": AtariProtocol().skip,
        "env_steps": 400_000,  # Atari100k: 100,000 decisions of four frames each
        "evaluation.every_env_steps": 0,
        "evaluation.also_at_env_steps": (),
        "evaluation.episodes": 100,
    },
    "gym": {"env.action_repeat": 1},
    "fake": {"env.action_repeat": 1, "env.size": 20, "agent.crop_size": 16},
}

DEFAULT_PRESETS = {"atari": "random"}
"""The method taken where none is named: the paper's own for that kind of task."""


def configure(task: str, preset: str | None = None, **flags: Any) -> Config:
    """The config of a preset on a task: preset, then the task's row, then flags (dotted names, `__` for the dot)."""
    found = resolve(task)
    name, kind = found.name, found.kind
    preset = preset or DEFAULT_PRESETS.get(kind, "curl-sac")
    if preset not in PRESETS:
        raise UserError(
            f"There is no preset {preset!r}{suggestion(preset, PRESETS)}; `curl-rl presets` shows what there is."
        )
    row = PRESETS[preset]
    task_row = {k: v for k, v in {**KIND_ROWS[kind], **TASK_ROWS.get(name, {})}.items() if k not in row.deaf_to}
    config = Config(task=name, preset=preset, agent=row.agent)
    for overrides in (
        row.overrides,
        _applicable(task_row, config),
        {k.replace("__", "."): v for k, v in flags.items()},
    ):
        for path, value in overrides.items():
            config = override(config, path, value)
    return config


def _applicable(row: Overrides, config: Config) -> Overrides:
    """A task's row may name fields that only some agents have (a learning rate, say)."""
    fields = {f"agent.{f.name}" for f in dataclasses.fields(config.agent)}
    return {path: value for path, value in row.items() if not path.startswith("agent.") or path in fields}


def override(config: Any, path: str, value: Any) -> Any:
    """A copy with one field, named by its dotted path, replaced."""
    name, _, rest = path.partition(".")
    if name not in {f.name for f in dataclasses.fields(config)}:
        raise UserError(f"A config has no field {path!r}.")
    return dataclasses.replace(config, **{name: override(getattr(config, name), rest, value) if rest else value})
