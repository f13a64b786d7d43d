"""The counting environments say who they are, end as their seed says, and pass both libraries' checks."""

import warnings

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from stable_baselines3.common.env_checker import check_env as check_env_sb3

from curl_rl.envs import FAKE, make
from curl_rl.envs.fake import decode


@pytest.mark.parametrize("name", FAKE)
def test_check_env(name: str) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*(not within the observation space|spec is not set|render).*")
        check_env(make(name), skip_render_check=True)
        check_env_sb3(make(name))


@pytest.mark.parametrize("name", FAKE)
def test_frames_count(name: str) -> None:
    env = make(name, size=40, action_repeat=2)
    frame, _ = env.reset(seed=77)
    for step in range(4):
        assert decode(frame) == (2 * step, 77)
        frame, *_ = env.step(env.action_space.sample())


def _episode(name: str, seed: int, **arguments: bool) -> tuple[list[float], list[bool], bool, bool]:
    """Rewards, life losses, and how the whole game ended."""
    env = make(name, **arguments)  # type: ignore[arg-type]
    actions = np.random.default_rng(seed)
    env.reset(seed=seed)
    rewards, losses = [], []
    while True:
        action = actions.integers(4) if name != "fake-continuous" else actions.uniform(-1, 1, 2).astype(np.float32)
        _, reward, terminated, truncated, info = env.step(action)
        assert info["raw_reward"] == reward
        rewards.append(float(reward))
        if terminated or truncated:
            _, info = env.reset(seed=1)
            losses.append(info["continues"])
            if not info["continues"]:
                return rewards, losses, terminated, truncated


@pytest.mark.parametrize("name", FAKE)
def test_seeds_decide_everything(name: str) -> None:
    assert _episode(name, 5) == _episode(name, 5)
    endings = [_episode(name, seed) for seed in range(40)]
    assert len({len(rewards) for rewards, *_ in endings}) > 10
    assert {(terminated, truncated) for *_, terminated, truncated in endings} == {(True, False), (False, True)}


def test_lives_are_lost_in_training_only() -> None:
    assert all(_episode("fake-lives", seed)[1] == [True, True, False] for seed in range(10))
    assert all(_episode("fake-lives", seed, training=False)[1] == [False] for seed in range(10))


def test_the_best_action_shows_in_the_frame() -> None:
    env = make("fake-discrete")
    frame, _ = env.reset(seed=0)
    for _ in range(4):
        frame, reward, *_ = env.step(frame[0, 20, 20] // 85)
        assert reward == 1


@pytest.mark.parametrize("name", ["fake-discrete", "fake-lives"])
def test_state_comes_back(name: str) -> None:
    env, other = make(name), make(name)
    env.reset(seed=3)
    for _ in range(4):
        frame, *_ = env.step(0)
    restored = other.set_state(env.get_state())  # type: ignore[attr-defined]
    np.testing.assert_array_equal(restored, frame)
    for action in (0, 1, 2, 3, 0):
        ours, theirs = env.step(action), other.step(action)
        np.testing.assert_array_equal(ours[0], theirs[0])
        assert ours[1:] == theirs[1:]
        if ours[2] or ours[3]:
            assert env.reset()[1] == other.reset()[1]
