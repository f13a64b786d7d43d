"""What an environment is made from (`EnvSpec`) and what a learner needs to know about one (`Description`)."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

import gymnasium

from curl_rl.envs.atari import AtariProtocol
from curl_rl.envs.tasks import Task, resolve
from curl_rl.errors import UserError

Observation = Literal["pixels", "state", "both"]
Shadows = Literal["paper", "fast"]


@dataclass(frozen=True)
class EnvSpec:
    """Everything that decides what an environment is; `make()` makes it, in this process or in a worker."""

    task: str | Callable[[], gymnasium.Env] | gymnasium.Env
    """A name in any spelling, a Gymnasium id, a callable that makes an environment, or an environment."""
    observation: Observation = "pixels"
    """The newest frame (uint8, channels first), the simulator's state (one float32 vector), or a dict of both."""
    size: int | None = None
    """Height and width of the frames. None: 100 for DMControl, 84 for Atari, the environment's own size for others."""
    action_repeat: int | None = None
    """Simulator steps per decision. None: the protocol's skip for Atari, 1 for everything else."""
    camera: int | str = 0
    """DMControl's camera, by number or name."""
    shadows: Shadows = "paper"
    """DMControl's shadow map: the paper's (2048 texels), or 512, which renders about twice as fast in software."""
    protocol: AtariProtocol | None = None
    """Atari's rules; None is the paper's protocol. `size` and `action_repeat`, where given, win over its fields."""
    training: bool = True
    """Atari clips rewards and ends episodes at lost lives in training only."""
    render_size: int | None = None
    """Height and width of DMControl's `render()` for videos. None: `size`."""

    def __post_init__(self) -> None:
        for field, choices in (("observation", get_args(Observation)), ("shadows", get_args(Shadows))):
            if (value := getattr(self, field)) not in choices:
                raise UserError(f"{field} is {value!r}; choose one of {', '.join(choices)}.")
        for field in ("size", "action_repeat", "render_size"):
            value = getattr(self, field)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise UserError(f"{field} is {value!r}; it must be a whole number of at least 1.")
        if isinstance(self.protocol, dict):  # from JSON
            object.__setattr__(self, "protocol", AtariProtocol(**self.protocol))
        if isinstance(self.task, str):
            object.__setattr__(self, "task", resolve(self.task).name)
        if self.protocol is not None and self.kind != "atari":
            raise UserError(f"{self.name} is no Atari game, so it takes no AtariProtocol; leave protocol=None.")

    @property
    def kind(self) -> Literal["dmc", "atari", "fake", "gym"]:
        return self.resolved.kind

    @property
    def resolved(self) -> Task:
        """The task by its canonical name; a callable or an environment counts as Gymnasium's."""
        return resolve(self.task) if isinstance(self.task, str) else Task(self.name, "gym")

    @property
    def name(self) -> str:
        """What messages call this environment."""
        if isinstance(self.task, str):
            return self.task
        if isinstance(self.task, gymnasium.Env):
            return str(self.task)
        return getattr(self.task, "__qualname__", repr(self.task))

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `EnvSpec(**values)` makes the spec again."""
        if not isinstance(self.task, str):
            raise UserError(
                f"{self.name} was handed over as an object, which no file can hold; register it with Gymnasium."
            )
        return asdict(self)

    def make(self) -> gymnasium.Env:
        """A new environment. Its module is imported here, so that nobody pays for a simulator that is not used."""
        if self.kind == "dmc":
            return self._make_dmc()
        if self.kind == "atari":
            return self._make_atari()
        if self.kind == "fake":
            return self._make_fake()
        from curl_rl.envs.gym_adapter import adapt

        return adapt(self.task, observation=self.observation, size=self.size, action_repeat=self.action_repeat or 1)

    def _make_dmc(self) -> gymnasium.Env:
        from curl_rl.envs.dmc import DMControl

        return DMControl(
            self.name,
            observation=self.observation,
            size=self.size or 100,
            action_repeat=self.action_repeat or 1,
            camera=self.camera,
            shadows=self.shadows,
            render_size=self.render_size,
        )

    def _make_atari(self) -> gymnasium.Env:
        from curl_rl.envs.atari import Atari

        if self.observation != "pixels":
            raise UserError(f"{self.name} has pixels only; observation={self.observation!r} needs a task of DMControl.")
        given = {"size": self.size, "skip": self.action_repeat}
        changes: dict[str, Any] = {field: value for field, value in given.items() if value is not None}
        return Atari(self.name, replace(self.protocol or AtariProtocol(), **changes), training=self.training)

    def _make_fake(self) -> gymnasium.Env:
        from curl_rl.envs.fake import FakeContinuous, FakeDiscrete

        if self.observation != "pixels":
            raise UserError(f"{self.name} has pixels only, not observation={self.observation!r}.")
        if self.name == "fake-continuous":
            return FakeContinuous(size=self.size or 100, action_repeat=self.action_repeat or 1)
        return FakeDiscrete(
            size=self.size or 84,
            action_repeat=self.action_repeat or 1,
            lives=3 if self.name == "fake-lives" and self.training else 1,
        )


@dataclass(frozen=True)
class Description:
    """What a learner must know about an environment before its first step."""

    observation_space: gymnasium.Space
    action_space: gymnasium.Space
    before_start: Literal["zeros", "repeat"]
    """What a stack holds before an episode's first frame."""
    can_continue: bool
    """Whether `reset()` may say `continues`: the learner's episode begins, but the game and its frames go on."""
    action_repeat: int
    """Simulator steps per agent step."""

    @property
    def frame_shape(self) -> tuple[int, ...] | None:
        """Shape of a frame, channels first; None where only the state is observed."""
        space = self.observation_space
        if isinstance(space, gymnasium.spaces.Dict):
            space = space["pixels"]
        return space.shape if len(space.shape or ()) == 3 else None


def describe(env: gymnasium.Env) -> Description:
    """The description of an environment made here."""
    return Description(
        observation_space=env.observation_space,
        action_space=env.action_space,
        before_start=getattr(env, "before_start", "repeat"),
        can_continue=getattr(env, "can_continue", False),
        action_repeat=getattr(env, "action_repeat", 1),
    )


def make(
    task: str | Callable[[], gymnasium.Env] | gymnasium.Env,
    *,
    observation: Observation = "pixels",
    size: int | None = None,
    action_repeat: int | None = None,
    camera: int | str = 0,
    shadows: Shadows = "paper",
    protocol: AtariProtocol | None = None,
    training: bool = True,
    render_size: int | None = None,
) -> gymnasium.Env:
    """A Gymnasium environment whose pixels are the newest frame, uint8, channels first; `EnvSpec` explains the rest."""
    return EnvSpec(
        task, observation, size, action_repeat, camera, shadows, protocol, training=training, render_size=render_size
    ).make()
