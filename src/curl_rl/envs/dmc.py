"""DeepMind Control tasks as Gymnasium environments: pixels, state or both; a time limit is a truncation."""

import logging
import os
from importlib.util import find_spec
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict

from curl_rl.envs import gl
from curl_rl.errors import UserError


class DMControl(gymnasium.Env):
    """One task of dm_control's suite. Actions lie in [-1, 1]; the reward is the sum over the repeated action."""

    render_mode = "rgb_array"
    before_start: Literal["zeros", "repeat"] = "repeat"
    can_continue = False

    def __init__(
        self,
        task: str,
        *,
        observation: Literal["pixels", "state", "both"] = "pixels",
        size: int = 100,
        action_repeat: int = 1,
        camera: int | str = 0,
        shadows: Literal["paper", "fast"] = "paper",
        render_size: int | None = None,
    ) -> None:
        self._env = _load(task, pixels=observation != "state")
        self.action_repeat, self.size, self.camera = action_repeat, size, camera
        self.render_size = render_size or size
        self._shows = observation
        fps = max(1, round(1 / self._env.control_timestep() / action_repeat))
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": fps}
        self._low, self._high = _action_bounds(self._env, task)
        self.action_space = Box(-1.0, 1.0, self._low.shape, np.float32)
        self.observation_space = self._make_observation_space()
        self._prepare_rendering(shadows)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._begin(seed)
        return self._observe(), {"continues": False}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward, terminated, truncated = self._advance(action)
        return self._observe(), reward, terminated, truncated, {"raw_reward": reward}

    def replay(self, seed: int, actions: np.ndarray) -> Any:
        """The observation after these actions of the episode with this seed. Draws only the last picture."""
        super().reset(seed=seed)
        self._begin(seed)
        for action in actions:
            self._advance(action)
        return self._observe()

    def render(self) -> np.ndarray:
        """A picture for videos, `render_size` square, height first."""
        return np.ascontiguousarray(self._draw(self.render_size))

    def close(self) -> None:
        if self._env is not None:
            self._env.close()  # frees the GL context; left to the interpreter's exit, it would complain
            self._env = None

    def _begin(self, seed: int | None) -> None:
        if seed is not None:
            self._env.task.random.seed(seed)
        self._timestep = self._env.reset()

    def _advance(self, action: Any) -> tuple[float, bool, bool]:
        """Repeat one action until the episode ends: its reward, terminated, truncated."""
        unit = (np.clip(np.asarray(action, np.float64), -1, 1) + 1) / 2
        torque = self._low + unit * (self._high - self._low)
        reward = 0.0
        for _ in range(self.action_repeat):
            self._timestep = self._env.step(torque)
            reward += float(self._timestep.reward or 0)
            if self._timestep.last():
                break
        # dm_control marks a real end by a discount of 0; its time limit leaves the discount at 1.
        terminated = self._timestep.last() and self._timestep.discount == 0
        return reward, bool(terminated), bool(self._timestep.last() and not terminated)

    def _observe(self) -> Any:
        if self._shows == "pixels":
            return self._pixels()
        if self._shows == "state":
            return self._state()
        return {"pixels": self._pixels(), "state": self._state()}

    def _pixels(self) -> np.ndarray:
        return np.ascontiguousarray(self._draw(self.size).transpose(2, 0, 1))

    def _draw(self, size: int) -> np.ndarray:
        return self._env.physics.render(size, size, camera_id=self.camera)

    def _state(self) -> np.ndarray:
        parts = [np.ravel(part) for part in self._timestep.observation.values()]
        return np.concatenate(parts).astype(np.float32)

    def _make_observation_space(self) -> gymnasium.Space:
        width = sum(int(np.prod(part.shape)) for part in self._env.observation_spec().values())
        state = Box(-np.inf, np.inf, (width,), np.float32)
        pixels = Box(0, 255, (3, self.size, self.size), np.uint8)
        if self._shows == "both":
            return Dict({"pixels": pixels, "state": state})
        return pixels if self._shows == "pixels" else state

    def _prepare_rendering(self, shadows: Literal["paper", "fast"]) -> None:
        """Both settings are read once, when the first picture makes the GL context."""
        physics = self._env.physics
        cameras = [physics.model.id2name(number, "camera") for number in range(physics.model.ncam)]
        if self.camera not in (-1, *range(len(cameras)), *cameras):
            known = ", ".join(f"{number} ({name})" for number, name in enumerate(cameras))
            raise UserError(f"There is no camera {self.camera!r}; this task has {known}.")
        # A buffer no larger than the pictures: the same pixels, less memory to clear and copy.
        physics.model.vis.global_.offwidth = physics.model.vis.global_.offheight = max(self.size, self.render_size)
        if shadows == "fast":
            physics.model.vis.quality.shadowsize = 512


NOT_INSTALLED = (
    "DMControl cannot be imported ({reason}); on Python 3.11 or 3.12, "
    "`pip install 'dm-control>=1.0.50,<1.1' 'mujoco>=3.17,<4'`."
)


def _load(task: str, *, pixels: bool) -> Any:
    if not (find_spec("dm_control") and find_spec("mujoco")):  # before OpenGL is tried, which would take the blame
        raise UserError(NOT_INSTALLED.format(reason="it is not installed"))
    logging.getLogger("absl").setLevel(logging.ERROR)  # walker's model file is deprecated syntax to today's MuJoCo
    try:
        suite = _import_suite(pixels)
    except ImportError as error:
        raise UserError(NOT_INSTALLED.format(reason=error)) from error
    domain, name = task.split("-", 1)
    return suite.load(domain, name)


def _import_suite(pixels: bool) -> Any:
    """States need no OpenGL, but dm_control settles its backend when it is imported, once for the whole process."""
    undecided = "MUJOCO_GL" not in os.environ
    try:
        if pixels or undecided:
            gl.choose()
    except UserError:
        if pixels:
            raise
        os.environ["MUJOCO_GL"] = "disable"  # otherwise it looks for a window, and says so
    from dm_control import suite

    if undecided and os.environ["MUJOCO_GL"] == "disable":
        del os.environ["MUJOCO_GL"]
    return suite


def _action_bounds(env: Any, task: str) -> tuple[np.ndarray, np.ndarray]:
    spec = env.action_spec()
    low, high = np.asarray(spec.minimum, np.float64), np.asarray(spec.maximum, np.float64)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise UserError(f"{task} has unbounded actions, which cannot be scaled to [-1, 1]; choose another task.")
    return np.broadcast_to(low, spec.shape), np.broadcast_to(high, spec.shape)
