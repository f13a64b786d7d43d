"""Evaluation on fake environments: which episodes are played, what the agent sees, that nothing else has a say."""

import numpy as np
import pytest

from curl_rl.envs import EnvSpec, episode_seed
from curl_rl.envs.fake import decode
from curl_rl.evaluate import Evaluator, FrameStacks


def still(stacks: np.ndarray, decision: int) -> np.ndarray:
    return np.zeros((*stacks.shape[:2], 2), np.float32)


def evaluator(width: int, trials: int = 1, workers: int = 0, stack: int = 3) -> Evaluator:
    spec = EnvSpec("fake-continuous", size=12, training=False)
    return Evaluator([spec] * trials, list(range(trials)), stack, width, workers)


def played_alone(run_seed: int, agent_step: int, number: int) -> tuple[float, int]:
    """One episode in a plain loop."""
    env = EnvSpec("fake-continuous", size=12, training=False).make()
    env.reset(seed=episode_seed(run_seed, f"evaluate/{agent_step}", number))
    score, steps, over = 0.0, 0, False
    while not over:
        _, reward, terminated, truncated, _ = env.step(np.zeros(2, np.float32))
        score, steps, over = score + reward, steps + 1, terminated or truncated
    return score, steps


@pytest.mark.parametrize("width", [1, 3, 7])
def test_episodes_are_the_same_however_many_play_at_once(width: int) -> None:
    found = evaluator(width).evaluate(still, agent_step=50, episodes=7)[0]
    assert [(e.score, e.agent_steps) for e in found] == [played_alone(0, 50, n) for n in range(7)]


def test_trials_have_episodes_of_their_own() -> None:
    fleet = evaluator(2, trials=3, workers=2)
    try:
        found = fleet.evaluate(still, agent_step=9, episodes=3)
    finally:
        fleet.close()
    expected = [[played_alone(trial, 9, n) for n in range(3)] for trial in range(3)]
    assert [[(e.score, e.agent_steps) for e in trial] for trial in found] == expected


def test_another_step_plays_other_episodes_and_the_same_step_the_same() -> None:
    evaluation = evaluator(2)
    first, again, other = (evaluation.evaluate(still, step, 4)[0] for step in (1, 1, 2))
    assert first == again
    assert first != other


def test_what_the_agent_sees() -> None:
    """Three frames, oldest first, of one and the same episode; before its start the first frame repeated."""
    counters = []

    def look(stacks: np.ndarray, decision: int) -> np.ndarray:
        frames = stacks[0, 0].reshape(3, 3, 12, 12)
        decoded = [decode(frame) for frame in frames]
        assert len({episode for _, episode in decoded}) == 1
        counters.append([counter for counter, _ in decoded])
        return np.zeros((1, 1, 2), np.float32)

    found = evaluator(1).evaluate(look, agent_step=3, episodes=3)[0]
    expected = [[max(0, t - 2), max(0, t - 1), t] for episode in found for t in range(episode.agent_steps)]
    assert counters == expected


def test_the_first_episode_is_kept_for_the_video() -> None:
    found = evaluator(2).evaluate(still, agent_step=3, episodes=3, keep_frames=True)[0]
    assert [decode(frame)[0] for frame in found[0].frames] == list(range(found[0].agent_steps))
    assert found[1].frames == ()


def test_stacks_begin_with_zeros_or_with_copies() -> None:
    frames = np.arange(1, 3, dtype=np.uint8)[:, None, None, None] * np.ones((2, 1, 2, 2), np.uint8)
    for before_start, first in (("zeros", 0), ("repeat", 1)):
        stacks = FrameStacks(2, 3, (1, 2, 2), np.dtype(np.uint8), before_start)
        stacks.begin(np.ones(2, bool), frames)
        assert stacks.array()[0, :, 0, 0].tolist() == [first, first, 1]
        stacks.push(frames + 10)
        assert stacks.array()[0, :, 0, 0].tolist() == [first, 1, 11]
        stacks.begin(np.array([False, True]), frames)
        assert stacks.array()[0, :, 0, 0].tolist() == [first, 1, 11]
