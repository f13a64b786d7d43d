"""Anybody's Gymnasium environment in the one form that learners know, or one sentence why that cannot be."""

from collections.abc import Callable
from math import prod
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete

from curl_rl.errors import UserError


def adapt(
    task: str | Callable[[], gymnasium.Env] | gymnasium.Env,
    *,
    observation: Literal["pixels", "state", "both"] = "pixels",
    size: int | None = None,
    action_repeat: int = 1,
) -> "GymAdapter":
    """An adapter around the environment that a Gymnasium id or a callable makes, or around the one given."""
    return GymAdapter(_environment(task), observation, size, action_repeat)


class GymAdapter(gymnasium.Wrapper):
    """Frames as uint8, channels first; actions as numbers from 0 or as a vector in [-1, 1]; the action repeated."""

    before_start: Literal["zeros", "repeat"] = "repeat"
    can_continue = False

    def __init__(self, env: gymnasium.Env, observation: str, size: int | None, action_repeat: int) -> None:
        super().__init__(env)
        self.action_repeat = action_repeat
        self._parts = _parts(env.observation_space)
        self._shows = observation
        self._image = _Image(_only_image(self._parts, env), size) if observation != "state" else None
        self._vectors = _vectors(self._parts, env) if observation != "pixels" else []
        self.observation_space = self._make_observation_space()
        self._act, self.action_space = _action(env.action_space, env)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return self._observe(observation), {**info, "continues": False}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        act, total = self._act(action), 0.0
        for _ in range(self.action_repeat):
            observation, reward, terminated, truncated, info = self.env.step(act)
            total += float(reward)
            if terminated or truncated:
                break
        return self._observe(observation), total, bool(terminated), bool(truncated), {**info, "raw_reward": total}

    def _make_observation_space(self) -> gymnasium.Space:
        width = sum(prod(self._parts[key].shape or ()) for key in self._vectors)
        state = Box(-np.inf, np.inf, (width,), np.float32)
        if self._image is None:
            return state
        return self._image.space if self._shows == "pixels" else Dict({"pixels": self._image.space, "state": state})

    def _observe(self, observation: Any) -> Any:
        if not isinstance(observation, dict):
            observation = {"": observation}
        if self._image is None:
            return self._state(observation)
        pixels = self._image.frame(observation)
        return pixels if self._shows == "pixels" else {"pixels": pixels, "state": self._state(observation)}

    def _state(self, observation: dict[str, Any]) -> np.ndarray:
        return np.concatenate([np.ravel(observation[key]) for key in self._vectors]).astype(np.float32)


class _Image:
    """How one entry of an observation becomes a frame."""

    def __init__(self, entry: tuple[str, Box], size: int | None) -> None:
        self._key, space = entry
        self._axis = _channel_axis(space.shape)
        self._scale = 1.0 if space.high.max() > 1 else 255.0
        self._converts = space.dtype != np.uint8
        plane = [length for axis, length in enumerate(space.shape) if axis != self._axis]
        self._target = (size, size) if size and plane != [size, size] else None
        height, width = self._target or plane
        channels = 1 if self._axis is None else space.shape[self._axis]
        self.space = Box(0, 255, (channels, height, width), np.uint8)

    def frame(self, observation: dict[str, Any]) -> np.ndarray:
        picture = np.asarray(observation[self._key])
        if self._converts:
            picture = np.clip(np.rint(picture * self._scale), 0, 255).astype(np.uint8)
        picture = picture[..., None] if self._axis is None else np.moveaxis(picture, self._axis, -1)
        if self._target:
            picture = _resize(picture, self._target)
        return np.ascontiguousarray(picture.transpose(2, 0, 1))


def _resize(picture: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    import cv2

    shrinks = picture.shape[0] > size[0]  # averaging keeps what a small picture would otherwise skip
    resized = cv2.resize(
        np.ascontiguousarray(picture), size, interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    )
    return resized if resized.ndim == 3 else resized[..., None]  # cv2 drops an axis of one channel


def _environment(task: str | Callable[[], gymnasium.Env] | gymnasium.Env) -> gymnasium.Env:
    if isinstance(task, gymnasium.Env):
        return task
    if callable(task):
        env = task()
        if not isinstance(env, gymnasium.Env):
            raise UserError(f"{task!r} gave {type(env).__name__}; it must give a gymnasium.Env.")
        return env
    try:
        return gymnasium.make(task, disable_env_checker=True)
    except (gymnasium.error.Error, ImportError) as error:
        raise UserError(f"Gymnasium cannot make {task!r}: {error}") from error


def _parts(space: gymnasium.Space) -> dict[str, gymnasium.Space]:
    """The entries of an observation by their keys; one entry without a key where it is no dict."""
    return dict(space.items()) if isinstance(space, Dict) else {"": space}


def _channel_axis(shape: tuple[int, ...]) -> int | None:
    """Where the channels are: last, first, or nowhere (a grey picture)."""
    if len(shape) == 2:
        return None
    return 2 if shape[2] in (1, 3) else 0


def _is_image(space: gymnasium.Space) -> bool:
    if not isinstance(space, Box) or len(space.shape) not in (2, 3) or min(space.shape[:2]) < 1:
        return False
    axis = _channel_axis(space.shape)
    if axis == 0 and space.shape[0] not in (1, 3):
        return False
    whole_bytes = space.dtype == np.uint8
    bounds = float(space.low.min()), float(space.high.max())
    return whole_bytes or bounds in ((0.0, 1.0), (0.0, 255.0))


def _only_image(parts: dict[str, gymnasium.Space], env: gymnasium.Env) -> tuple[str, Box]:
    images = [(key, space) for key, space in parts.items() if isinstance(space, Box) and _is_image(space)]
    if len(images) == 1:
        return images[0]
    if images:
        raise UserError(
            f"{env} shows {len(images)} pictures ({', '.join(key for key, _ in images)}); wrap it so that one is left."
        )
    raise UserError(
        f"{env} shows {env.observation_space}, which has no picture. Needed: height × width × 1 or 3 channels "
        f"(channels first or last, or none), uint8 or floats in [0, 1] or [0, 255], alone or in a dict. "
        f"gymnasium.wrappers.AddRenderObservation makes one of what it renders; observation='state' learns without."
    )


def _vectors(parts: dict[str, gymnasium.Space], env: gymnasium.Env) -> list[str]:
    keys = [key for key, space in parts.items() if isinstance(space, Box) and not _is_image(space)]
    if not keys:
        raise UserError(
            f"{env} shows {env.observation_space}, which has no vector for its state; use observation='pixels'."
        )
    return keys


def _action(space: gymnasium.Space, env: gymnasium.Env) -> tuple[Callable[[Any], Any], gymnasium.Space]:
    """From our action to the environment's, and the space of ours."""
    if isinstance(space, Discrete):
        return (lambda action: int(action) + int(space.start)), Discrete(int(space.n))
    if not isinstance(space, Box):
        hint = " (gymnasium.wrappers can flatten it)" if isinstance(space, MultiDiscrete | MultiBinary) else ""
        raise UserError(f"{env} takes actions of {space}{hint}; needed is Discrete or a bounded Box.")
    if not space.is_bounded("both") or not np.issubdtype(space.dtype, np.floating):
        raise UserError(
            f"{env} takes actions of {space}; a Box needs floats with finite bounds, to be scaled to [-1, 1]."
        )
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)

    def scaled(action: Any) -> np.ndarray:
        unit = (np.clip(np.asarray(action, np.float64), -1, 1) + 1) / 2
        return (low + unit.reshape(space.shape) * (high - low)).astype(space.dtype)

    return scaled, Box(-1.0, 1.0, (prod(space.shape),), np.float32)
