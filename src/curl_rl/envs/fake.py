"""Counting environments: pixels that say which step of which episode they are, for tests of everything around an agent.

A frame holds the step counter and the episode's number (its seed) in its first bytes, the *phase* (counter modulo 4) as
the brightness of its upper half and the counter as that of its lower half. The best action depends on the phase alone,
so learning code can be seen to learn.
"""

import json
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from curl_rl.envs.seeds import episode_seed

PHASES = 4


def decode(frame: np.ndarray) -> tuple[int, int]:
    """The counter and the episode's number that a frame holds."""
    counter, episode = np.ascontiguousarray(frame[0, 0, :8]).view("<u4")
    return int(counter), int(episode)


class _Counting(gymnasium.Env):
    """What the two kinds share: the counter, the episode's length and end, the picture."""

    render_mode = "rgb_array"
    before_start: Literal["zeros", "repeat"] = "repeat"

    def __init__(self, channels: int, size: int, action_repeat: int, lives: int) -> None:
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
        self.observation_space = Box(0, 255, (channels, size, size), np.uint8)
        self.action_repeat = action_repeat
        self.can_continue = lives > 1
        self._lives_at_start = lives
        self._episode = self._counter = self._lives_lost = 0
        self._life_just_lost = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        continues = self._life_just_lost and not (options or {}).get("new_game", False)
        self._life_just_lost = False
        if continues:
            self._counter += 1  # as Atari's no-op after a lost life
        else:
            super().reset(seed=seed)
            self._episode = (seed if seed is not None else int(self.np_random.integers(2**31))) % 2**32
            self._counter = self._lives_lost = 0
        return self._picture(), {"continues": continues}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward, terminated, truncated = self._advance(action)
        return self._picture(), reward, terminated, truncated, {"raw_reward": reward}

    @property
    def length(self) -> int:
        """Simulator steps until this episode ends: 5 to 30 for each life, the same for the same seed."""
        return self._lives_at_start * (5 + episode_seed(self._episode, "length", 0) % 26)

    def _advance(self, action: Any) -> tuple[float, bool, bool]:
        """Count on for the repeated action: the reward, and whether the episode was terminated or truncated."""
        reward, over = 0.0, False
        for _ in range(self.action_repeat):
            reward += self._reward(self._counter, action)
            self._counter += 1
            over = self._counter >= self.length
            if over:
                break
        truncated = over and episode_seed(self._episode, "truncated", 0) % 2 == 1
        lost = self._counter * self._lives_at_start // self.length
        self._life_just_lost = not over and lost > self._lives_lost
        self._lives_lost = lost
        return reward, (over and not truncated) or self._life_just_lost, truncated

    def _reward(self, counter: int, action: Any) -> float:
        raise NotImplementedError

    def _picture(self) -> np.ndarray:
        shape: tuple[int, ...] = self.observation_space.shape  # type: ignore[assignment]  # a Box has one
        picture = np.empty(shape, np.uint8)
        half = shape[1] // 2
        picture[:, :half] = self._counter % PHASES * (255 // (PHASES - 1))
        picture[:, half:] = self._counter % 256
        picture[0, 0, :8] = np.array([self._counter, self._episode], "<u4").view(np.uint8)
        return picture

    def render(self) -> np.ndarray:
        return np.broadcast_to(self._picture()[0][..., None], (*self.observation_space.shape[1:], 3)).copy()  # type: ignore[index]


class FakeDiscrete(_Counting):
    """Four actions; the one that equals the phase pays 1. With several lives it plays on after a lost one, as Atari."""

    def __init__(self, *, size: int = 84, action_repeat: int = 1, lives: int = 1) -> None:
        super().__init__(1, size, action_repeat, lives)
        self.action_space = Discrete(PHASES)

    def _reward(self, counter: int, action: Any) -> float:
        return float(int(action) == counter % PHASES)

    def get_state(self) -> bytes:
        state = [self._episode, self._counter, self._lives_lost, int(self._life_just_lost)]
        return json.dumps([*state, self.np_random.bit_generator.state]).encode()

    def set_state(self, state: bytes) -> np.ndarray:
        self._episode, self._counter, self._lives_lost, life_just_lost, random = json.loads(state)
        self._life_just_lost = bool(life_just_lost)
        self.np_random.bit_generator.state = random
        return self._picture()


class FakeContinuous(_Counting):
    """Two actions in [-1, 1] that pay by their distance to a target set by the phase.

    It cannot save its state, so it is resumed by replaying its actions.
    """

    def __init__(self, *, size: int = 100, action_repeat: int = 1) -> None:
        super().__init__(3, size, action_repeat, lives=1)
        self.action_space = Box(-1.0, 1.0, (2,), np.float32)

    def _reward(self, counter: int, action: Any) -> float:
        target = 2 * (counter % PHASES) / (PHASES - 1) - 1
        return float(1 - np.abs(np.asarray(action, np.float64) - target).mean())
