"""Atari games as the data-efficient literature plays them, on the bare emulator, each choice in `AtariProtocol`."""

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from curl_rl.errors import UserError

if TYPE_CHECKING:
    from ale_py import ALEInterface

NOOP = 0
_LIFE_BEGINS = 255  # in a game's history: the no-op after a lost life; actions are numbered 0..17


@dataclass(frozen=True)
class AtariProtocol:
    """The rules of play. The defaults are the paper's, those of the Atari100k benchmark.

    Not for choice: frames are grey, each of the last two of a step is resized (bilinear) and *then* their maximum is
    taken, and the frame after a reset stands alone.
    """

    skip: int = 4
    """Frames that an action is repeated for."""
    size: int = 84
    """Height and width of an observation."""
    sticky: float = 0.0
    """Probability, at each frame, that the previous frame's action is repeated instead."""
    max_noops: int = 29
    """A game begins with 0 to this many no-ops of one frame each, drawn uniformly from the episode's seed."""
    minimal_actions: bool = True
    """Only the actions that do something in this game, or all 18."""
    max_frames: int = 108_000
    """A game is cut after this many frames (half an hour), no-ops included. That is a truncation."""
    clip_rewards: bool = True
    """Rewards are clipped to [-1, 1] (training only); `info["raw_reward"]` keeps the score."""
    episodic_lives: bool = True
    """A lost life ends the learner's episode (training only); `reset()` then does one no-op, whose reward is dropped,
    and the game plays on."""

    def __post_init__(self) -> None:
        for field in ("skip", "size", "max_frames"):
            if getattr(self, field) < 1:
                raise UserError(f"AtariProtocol.{field} is {getattr(self, field)}; it must be at least 1.")
        if not 0 <= self.sticky < 1 or self.max_noops < 0:
            raise UserError(
                f"AtariProtocol needs 0 <= sticky < 1 and max_noops >= 0, not {self.sticky} and {self.max_noops}."
            )


class Atari(gymnasium.Env):
    """One game. Its saved state is the game's beginning and every action since.

    Why not the emulator's own state: restoring it in another process loses a half-drawn frame, after which Q*bert plays
    on differently (ALE 0.12). Replaying is exact in every game and costs some 0.2 ms per agent step of the running one.
    """

    render_mode = "rgb_array"
    before_start: Literal["zeros", "repeat"] = "zeros"

    def __init__(self, game: str, protocol: AtariProtocol | None = None, *, training: bool = True) -> None:
        self.game, self.protocol, self.training = game, protocol or AtariProtocol(), training
        self.action_repeat = self.protocol.skip
        self.can_continue = training and self.protocol.episodic_lives
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": max(1, round(60 / self.protocol.skip))}
        self._ale = _load(game, self.protocol.max_frames)
        self._actions = (
            self._ale.getMinimalActionSet() if self.protocol.minimal_actions else self._ale.getLegalActionSet()
        )
        self.action_space = Discrete(len(self._actions))
        self.observation_space = Box(0, 255, (1, self.protocol.size, self.protocol.size), np.uint8)
        self._grey = np.empty(self._ale.getScreenDims(), np.uint8)
        self._ale.reset_game()
        self._at_start = self._ale.cloneSystemState()
        self._first_picture = self._resized_screen()
        self._history: bytearray | None = None  # None until the first reset

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin a game, or, after a lost life, the next life of this one (then the seed waits for the next game).

        `options={"new_game": True}` begins a game in any case.
        """
        continues = self._history is not None and self._life_lost and not (options or {}).get("new_game", False)
        if continues:
            continues = self._begin_life()
        if not continues:
            super().reset(seed=seed)
            self._begin_game()
        return self._observe([self._picture()]), {"continues": continues, "lives": self._lives}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if not 0 <= int(action) < len(self._actions):
            raise ValueError(f"{self.game} has actions 0 to {len(self._actions) - 1}, not {action}")
        pictures: list[np.ndarray] = []
        raw_reward, terminated, truncated = self._play(int(action), pictures)
        reward = float(np.clip(raw_reward, -1, 1)) if self.training and self.protocol.clip_rewards else raw_reward
        info = {"raw_reward": raw_reward, "lives": self._lives}
        return self._observe(pictures), reward, terminated or self._life_lost, truncated, info

    def render(self) -> np.ndarray:
        return self._ale.getScreenRGB()

    def get_state(self) -> bytes:
        """The game's beginning and its history, enough to continue it exactly in another process."""
        if self._history is None:
            raise ValueError(f"{self.game} has no state to save before its first reset()")
        head = json.dumps({**self._identity(), "random_at_start": self._random_at_start}).encode()
        return head + b"\n" + bytes(self._history)

    def set_state(self, state: bytes) -> np.ndarray:
        """Continue a game that `get_state` saved; gives its latest observation."""
        head, history = state.split(b"\n", 1)
        saved = json.loads(head)
        random_at_start = saved.pop("random_at_start")
        if saved != self._identity():
            raise ValueError(f"this state was saved from {saved}, and this environment is {self._identity()}")
        self.np_random.bit_generator.state = random_at_start
        self._begin_game()
        pictures = [self._picture()]
        for position, event in enumerate(history, start=1):
            pictures = []
            look = pictures if position == len(history) else None  # pictures cost as much as the emulation
            if event == _LIFE_BEGINS:
                self._begin_life()
                pictures = [self._picture()]
            else:
                self._play(event, look)
        return self._observe(pictures)

    def close(self) -> None:
        """Nothing to do: the emulator holds memory only."""

    def _identity(self) -> dict[str, Any]:
        return {"game": self.game, "protocol": asdict(self.protocol), "training": self.training}

    def _begin_game(self) -> None:
        self._random_at_start = self.np_random.bit_generator.state
        self._history = bytearray()
        self._restart()
        for _ in range(int(self.np_random.integers(self.protocol.max_noops + 1))):
            self._frame(NOOP)
            if self._ale.game_over():
                self._restart()
        self._lives = self._ale.lives()

    def _restart(self) -> None:
        """Back to power-on. The console's own reset leaves traces of the last game in the memory of 23 of 104 games.

        The saved beginning comes on top of it and not instead, since it must not meet a half-drawn screen.
        """
        self._ale.reset_game()
        self._ale.restoreSystemState(self._at_start)
        self._previous_action = NOOP
        self._life_lost = False
        self._screen_is_first = True

    def _begin_life(self) -> bool:
        """One no-op after a lost life. False where the game ended in it, so that a new one must begin."""
        assert self._history is not None
        self._history.append(_LIFE_BEGINS)
        self._frame(NOOP)
        self._life_lost = False
        self._lives = self._ale.lives()
        return not self._ale.game_over()

    def _play(self, action: int, pictures: list[np.ndarray] | None) -> tuple[float, bool, bool]:
        """One agent step: score, game over, game cut. Where a list is given, its last two frames' pictures go into it.

        If the game ends before those, the picture of its last frame is the only one.
        """
        assert self._history is not None, "reset() comes before step()"
        self._history.append(action)
        raw_reward = 0.0
        for frame in range(self.protocol.skip):
            raw_reward += self._frame(self._actions[action])
            over = self._ale.game_over()
            if pictures is not None and (over or frame >= self.protocol.skip - 2):
                pictures.append(self._picture())
            if over:
                break
        terminated = self._ale.game_over(with_truncation=False)
        truncated = over and not terminated
        lives = self._ale.lives()
        self._life_lost = self.can_continue and not over and 0 < lives < self._lives
        self._lives = lives
        return raw_reward, terminated, truncated

    def _frame(self, action: Any) -> int:
        if self.protocol.sticky and self.np_random.random() < self.protocol.sticky:
            action = self._previous_action
        self._previous_action = action
        self._screen_is_first = False
        return self._ale.act(action)

    def _picture(self) -> np.ndarray:
        """The screen now. A restored emulator shows its old screen until the next frame, hence the remembered one."""
        return self._first_picture if self._screen_is_first else self._resized_screen()

    def _resized_screen(self) -> np.ndarray:
        import cv2

        self._ale.getScreenGrayscale(self._grey)
        return cv2.resize(self._grey, (self.protocol.size, self.protocol.size), interpolation=cv2.INTER_LINEAR)

    @staticmethod
    def _observe(pictures: list[np.ndarray]) -> np.ndarray:
        return np.maximum.reduce(pictures)[None]


def _load(game: str, max_frames: int) -> "ALEInterface":
    """An emulator with the game inside and no randomness of its own: sticky actions draw from the environment."""
    try:
        import ale_py
        from ale_py import roms
    except ImportError as error:
        raise UserError(
            f"Atari games need ale-py, which cannot be imported ({error}); `pip install 'ale-py>=0.12,<0.13'`."
        ) from error
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    ale.setFloat("repeat_action_probability", 0.0)
    ale.setInt("random_seed", 0)
    ale.setInt("max_num_frames_per_episode", max_frames)
    path = roms.get_rom_path(game)
    if path is None:
        raise UserError(f"This ale-py has no ROM of {game}; `pip install 'ale-py>=0.12,<0.13'` brings it.")
    ale.loadROM(path)
    return ale
