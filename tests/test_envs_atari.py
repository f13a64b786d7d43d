"""Atari's protocol against a slow, obvious reference on a bare emulator that loads the ROM anew for every game."""

import hashlib
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import ale_py
import cv2
import numpy as np
import pytest
import scipy.stats
from ale_py import roms
from gymnasium.utils.env_checker import check_env
from stable_baselines3.common.env_checker import check_env as check_env_sb3

from curl_rl.envs import AtariProtocol, make
from curl_rl.errors import UserError


class Reference:
    """The paper's rules, written down one after another. It shares no line with the environment."""

    def __init__(self, game: str, training: bool, max_frames: int = 108_000, max_noops: int = 29) -> None:
        self.game, self.training, self.max_frames, self.max_noops = game, training, max_frames, max_noops
        self.life_lost = False

    def picture(self) -> np.ndarray:
        return cv2.resize(self.ale.getScreenGrayscale(), (84, 84), interpolation=cv2.INTER_LINEAR)

    def load(self) -> None:
        self.ale = ale_py.ALEInterface()
        self.ale.setFloat("repeat_action_probability", 0)
        self.ale.loadROM(roms.get_rom_path(self.game))
        self.ale.reset_game()
        self.frames = 0

    def frame(self, action: Any) -> int:
        self.frames += 1
        return self.ale.act(action)

    def reset(self, seed: int) -> tuple[np.ndarray, bool]:
        continues = self.life_lost
        if self.life_lost:
            self.frame(0)
        else:
            self.load()
            for _ in range(np.random.default_rng(seed).integers(0, self.max_noops + 1)):
                self.frame(0)
                if self.frames >= self.max_frames:
                    self.load()
        self.life_lost = False
        self.lives = self.ale.lives()
        return self.picture()[None], continues

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, float]:
        total, last_two = 0, []
        for number in (1, 2, 3, 4):
            total += self.frame(self.ale.getMinimalActionSet()[action])
            game_over, cut = self.ale.game_over(), self.frames >= self.max_frames
            if number in (3, 4) or game_over or cut:
                last_two.append(self.picture())
            if game_over or cut:
                break
        lives_before, self.lives = self.lives, self.ale.lives()
        self.life_lost = self.training and 0 < self.lives < lives_before and not game_over and not cut
        reward = max(-1, min(1, total)) if self.training else total
        observation = last_two[0] if len(last_two) == 1 else np.where(last_two[0] > last_two[1], *last_two)
        return observation[None], reward, game_over or self.life_lost, cut and not game_over, total


@pytest.mark.parametrize(
    ("game", "training", "max_frames"),
    [
        ("breakout", True, 108_000),
        ("breakout", False, 108_000),
        ("assault", True, 108_000),  # a game that remembers the last one across the console's reset
        ("qbert", True, 108_000),
        ("ms_pacman", False, 108_000),
        ("boxing", True, 117),  # cut at each of a step's four frames
        ("pong", True, 20),  # cut within the no-ops
    ],
)
def test_plays_as_the_reference(game: str, training: bool, max_frames: int) -> None:
    env = make(game, training=training, protocol=AtariProtocol(max_frames=max_frames))
    reference = Reference(game, training, max_frames)
    actions = np.random.default_rng(1)
    seen = {"life": 0, "game": 0, "cut": 0}
    observation, _ = env.reset(seed=100)
    expected, _ = reference.reset(100)
    np.testing.assert_array_equal(observation, expected)
    for step in range(900 if max_frames > 1000 else 80):
        action = int(actions.integers(env.action_space.n))
        observation, reward, terminated, truncated, info = env.step(action)
        expected, *rest = reference.step(action)
        np.testing.assert_array_equal(observation, expected, err_msg=f"step {step}")
        assert [reward, terminated, truncated, info["raw_reward"]] == rest, step
        assert observation.max() > 0
        if terminated or truncated:
            observation, info = env.reset(seed=step)
            expected, continues = reference.reset(step)
            np.testing.assert_array_equal(observation, expected, err_msg=f"reset {step}")
            assert info["continues"] == continues
            seen["cut" if truncated else "life" if continues else "game"] += 1
    if game in ("breakout", "qbert", "assault"):
        assert seen["game"] > 0
    assert (seen["life"] > 0) == (training and game in ("breakout", "qbert", "assault"))
    assert (seen["cut"] > 0) == (max_frames < 1000)


@pytest.mark.parametrize("game", ["berzerk", "solaris"])  # whose first screen after loading no later reset shows
def test_the_first_frame_without_noops_is_the_loaded_games(game: str) -> None:
    env = make(game, protocol=AtariProtocol(max_noops=0))
    expected, _ = Reference(game, training=True, max_noops=0).reset(0)
    for _ in range(2):
        np.testing.assert_array_equal(env.reset(seed=0)[0], expected)


def test_actions_are_the_games_own_or_all() -> None:
    assert make("breakout").action_space.n == 4  # type: ignore[attr-defined]
    assert make("breakout", protocol=AtariProtocol(minimal_actions=False)).action_space.n == 18  # type: ignore[attr-defined]
    env = make("pong")
    env.reset(seed=0)
    with pytest.raises(ValueError, match="actions 0 to 5, not 6"):
        env.step(6)


def test_rewards_are_clipped_in_training_only() -> None:
    scores = {}
    for training in (True, False):
        env = make("ms_pacman", training=training)
        env.reset(seed=0)
        scores[training] = [(reward, info["raw_reward"]) for _, reward, _, _, info in (env.step(2) for _ in range(200))]
    assert max(raw for _, raw in scores[True]) >= 10
    assert scores[True] == [(min(raw, 1.0), raw) for _, raw in scores[True]]
    assert scores[False] == [(raw, raw) for _, raw in scores[False]]


def test_noops_are_uniform_and_seeded() -> None:
    env = make("pong")
    counts = []
    for seed in range(300):
        env.reset(seed=seed)
        counts.append(env._ale.getEpisodeFrameNumber())  # type: ignore[attr-defined]
    assert set(counts) == set(range(30))
    assert scipy.stats.chisquare(np.bincount(counts)).pvalue > 0.001
    assert counts[:5] == [int(np.random.default_rng(seed).integers(30)) for seed in range(5)]


def test_a_lost_life_goes_on_with_one_frame() -> None:
    env = make("breakout")
    env.reset(seed=0)
    terminated = False
    while not terminated:
        *_, terminated, _, info = env.step(1)
    assert info["lives"] == 4
    before = env._ale.getEpisodeFrameNumber()  # type: ignore[attr-defined]
    _, info = env.reset(seed=9)
    assert (info["continues"], env._ale.getEpisodeFrameNumber() - before) == (True, 1)  # type: ignore[attr-defined]
    _, info = env.reset(seed=9)  # no life lost since: a game begins
    assert (info["continues"], info["lives"]) == (False, 5)


def test_a_new_game_can_be_asked_for() -> None:
    env = make("breakout")
    first, _ = env.reset(seed=4)
    while not env.step(1)[2]:
        pass
    again, info = env.reset(seed=4, options={"new_game": True})
    np.testing.assert_array_equal(again, first)
    assert not info["continues"]


def test_sticky_actions_are_seeded_and_about_as_many_as_said() -> None:
    env = make("pong", protocol=AtariProtocol(sticky=0.25, max_noops=0, skip=1))
    played: list[int] = []

    class Recorder:
        def __init__(self, ale: Any) -> None:
            self.ale = ale

        def act(self, action: Any) -> int:
            played.append(action.value if action else 0)
            return self.ale.act(action)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.ale, name)

    env._ale = Recorder(env._ale)  # type: ignore[attr-defined]
    runs = []
    for _ in range(2):
        played.clear()
        env.reset(seed=3)
        for step in range(800):
            env.step(2 + step % 2)  # asks for another action at every frame
        runs.append(list(played))
    assert runs[0] == runs[1]
    repeated = np.mean([now == before for before, now in zip(runs[0], runs[0][1:], strict=False)])
    # The asked action alternates. Played equals asked with probability P = 0.75 + 0.25 (1 - P) = 0.8, so two frames
    # play the same when stuck, or when not stuck after a frame that played the other: 0.25 + 0.75 * 0.2.
    assert repeated == pytest.approx(0.4, abs=5 * np.sqrt(0.4 * 0.6 / 800))


_CONTINUE = """
import hashlib, sys
import numpy as np
from curl_rl.envs import AtariProtocol, make
env = make(sys.argv[1], protocol=AtariProtocol(sticky=float(sys.argv[2])))
latest = env.set_state(open(sys.argv[3], "rb").read())
actions, digest = np.random.default_rng(5), hashlib.sha256(latest.tobytes())
for step in range(200):
    observation, *rest = env.step(int(actions.integers(env.action_space.n)))
    if rest[1] or rest[2]:
        observation, info = env.reset(seed=step)
        rest.append(info)
    digest.update(observation.tobytes() + repr(rest).encode())
print(digest.hexdigest())
"""


@pytest.mark.parametrize(("game", "sticky"), [("qbert", 0.0), ("breakout", 0.25), ("seaquest", 0.0), ("amidar", 0.0)])
def test_a_saved_game_goes_on_exactly_in_another_process(game: str, sticky: float, tmp_path: Path) -> None:
    env = make(game, protocol=AtariProtocol(sticky=sticky))
    actions = np.random.default_rng(0)
    env.reset(seed=1)
    lost = False
    for step in range(1000):  # until a life is lost in the second game, and not yet reset
        observation, _, terminated, truncated, info = env.step(int(actions.integers(env.action_space.n)))
        lost = terminated and info["lives"] > 0
        if lost and step > 300:
            break
        if terminated or truncated:
            env.reset(seed=step)
    assert lost
    (tmp_path / "state").write_bytes(env.get_state())  # type: ignore[attr-defined]

    actions, digest = np.random.default_rng(5), hashlib.sha256(observation.tobytes())
    for step in range(200):
        observation, *rest = env.step(int(actions.integers(env.action_space.n)))
        if rest[1] or rest[2]:
            observation, info = env.reset(seed=step)
            rest.append(info)
        digest.update(observation.tobytes() + repr(rest).encode())
    command = [sys.executable, "-c", _CONTINUE, game, str(sticky), str(tmp_path / "state")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == digest.hexdigest()


def test_states_are_plain_and_their_owner_is_checked() -> None:
    env = make("pong")
    with pytest.raises(ValueError, match="before its first reset"):
        env.get_state()  # type: ignore[attr-defined]
    env.reset(seed=0)
    env.step(3)
    state = env.get_state()  # type: ignore[attr-defined]
    assert state.startswith(b'{"game": "pong"')
    assert state.endswith(b"\n\x03")
    with pytest.raises(ValueError, match="was saved from"):
        make("boxing").set_state(state)  # type: ignore[attr-defined]


@pytest.mark.parametrize("game", ["seaquest", "berzerk", "solaris"])  # whose console's reset leaves traces
def test_frames_depend_on_the_seed_alone(game: str) -> None:
    def play(env: Any) -> np.ndarray:
        first, _ = env.reset(seed=12, options={"new_game": True})
        return np.stack([first, *(env.step(action)[0] for action in [1, 0, 2, 1, 3, 2] * 10)])

    env = make(game, protocol=AtariProtocol(max_noops=0))
    fresh = play(env)
    for action in [1, 2, 3, 4, 5] * 40:
        env.step(action)
    np.testing.assert_array_equal(play(env), fresh)


@pytest.mark.parametrize("training", [True, False])
def test_check_env(training: bool) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*(spec is not set|render|recommend).*")
        check_env(make("pong", training=training), skip_render_check=True)
        check_env_sb3(make("pong", training=training))


def test_render_shows_the_whole_screen_in_colour() -> None:
    env = make("ms_pacman")
    env.reset(seed=0)
    env.step(0)
    assert env.render().shape == (210, 160, 3)  # type: ignore[union-attr]
    assert env.metadata["render_fps"] == 15


def test_size_and_skip_win_over_the_protocol() -> None:
    env = make("pong", size=50, action_repeat=2, protocol=AtariProtocol(size=84, skip=4, max_noops=0))
    observation, _ = env.reset(seed=0)
    env.step(0)
    assert observation.shape == (1, 50, 50)
    assert env._ale.getEpisodeFrameNumber() == 2  # type: ignore[attr-defined]


def test_bad_protocols_and_states_are_refused() -> None:
    for wrong in ({"skip": 0}, {"sticky": 1.0}, {"max_noops": -1}):
        with pytest.raises(UserError):
            AtariProtocol(**wrong)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="pong has pixels only"):
        make("pong", observation="state")
