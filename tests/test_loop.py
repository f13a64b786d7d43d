"""The loop with a counting environment and a learner that checks what it is given: no learning, only plumbing."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from curl_rl import build
from curl_rl.config import Config, Runtime
from curl_rl.envs.fake import decode
from curl_rl.log import read_rows
from curl_rl.loop import Outcome
from curl_rl.presets import configure
from curl_rl.replay import Batch
from curl_rl.rng import Purpose, words
from curl_rl.scores import read_scores

STACK = 3


class Checker:
    """Acts by the random words it is given, and checks stacks, batches and the order of events."""

    def __init__(self) -> None:
        self.acted: list[int] = []
        self.updated: list[int] = []
        self.evaluated: set[int] = set()
        self.batches = 0
        self.repeat, self.learns_from = 1, 40

    def acting_plan(self, stacks: int) -> dict[str, tuple[Purpose, int]]:
        return {"action": (Purpose.EXPLORATION_NOISE, 2 * stacks)}

    def learning_plan(self) -> dict[str, tuple[Purpose, int]]:
        return {"sample": (Purpose.SAMPLE, 16)}

    def learns_at(self, agent_step: int) -> bool:
        return agent_step >= self.learns_from

    def act(self, stacks: Tensor, drawn: Mapping[str, Tensor], agent_step: int, explore: bool) -> Tensor:
        counters = self.counters(stacks[:, 0])
        assert (np.diff(counters) <= self.repeat).all()
        if explore:
            assert len(self.updated) == max(0, agent_step - self.learns_from), "act comes before this step's update"
            assert drawn["action"].equal(words([5], agent_step, Purpose.EXPLORATION_NOISE, 2))
            self.acted.append(agent_step)
        else:
            self.evaluated.add(agent_step)
        return drawn["action"].view(*stacks.shape[:2], 2) / 2**32

    def update(self, batch: Batch, drawn: Mapping[str, Tensor], agent_step: int) -> dict[str, Tensor]:
        assert int(batch.index.max()) < agent_step, "the transition of this very step is not there yet"
        self.updated.append(agent_step)
        now, after = self.counters(batch.obs[0]), self.counters(batch.next_obs[0])
        assert (after[:, -1] == now[:, -1] + 1).all(), "no transition crosses an episode"
        terminated = batch.discount[0] == 0
        assert ((batch.discount[0] == 0.99) | terminated).all()
        for i in range(16):
            assert batch.reward[0, i].item() == pytest.approx(reward(now[i, -1], batch.action[0, i].numpy()), abs=1e-6)
        self.batches += 1
        return {"losses/batches": torch.tensor([float(self.batches)])}

    @staticmethod
    def counters(stacks: Tensor) -> np.ndarray:
        frames = stacks.reshape(len(stacks), STACK, 3, *stacks.shape[-2:]).numpy()
        return np.array([[decode(frame)[0] for frame in stack] for stack in frames])

    def state_dict(self) -> dict[str, Tensor]:
        return {"batches": torch.tensor([self.batches])}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.batches = int(state["batches"])


def reward(counter: int, action: np.ndarray) -> float:
    return float(1 - np.abs(action - (2 * (counter % 4) / 3 - 1)).mean())


@pytest.fixture
def checker(monkeypatch: pytest.MonkeyPatch) -> Checker:
    made = Checker()
    monkeypatch.setattr(build, "make_learner", lambda config, fleet, device: made)
    return made


def config(steps: int = 300) -> Config:
    made = configure("fake-continuous", seed=5, env_steps=steps)
    evaluation = dataclasses.replace(made.evaluation, every_env_steps=100, also_at_env_steps=(130,), episodes=3)
    return dataclasses.replace(made, evaluation=evaluation)


def train(directory: Path, wanted: Config, **runtime: object) -> Outcome:
    return build.train(wanted, Runtime(directory=directory, threads=1, **runtime))  # type: ignore[arg-type]


def test_a_whole_run(checker: Checker, tmp_path: Path) -> None:
    outcome = train(tmp_path / "run", config())
    assert outcome.finished
    assert checker.acted == list(range(300))
    assert checker.updated == list(range(40, 300))
    assert checker.evaluated == {100, 130, 200, 300}
    rows = read_rows(tmp_path / "run" / "evaluations.jsonl")
    assert [row["env_steps"] for row in rows] == [100, 130, 200, 300]
    assert all(len(row["returns"]) == 3 for row in rows)
    [score] = read_scores(tmp_path / "run" / "scores.csv")
    assert (score.env_steps, score.episodes, score.mean) == (300, 3, rows[-1]["mean"])
    for name in ("config.json", "runtime.json", "metrics.csv", "curve.png", "video.gif", "done"):
        assert (tmp_path / "run" / name).stat().st_size > 0


def test_training_episodes_are_logged_as_they_end(checker: Checker, tmp_path: Path) -> None:
    train(tmp_path / "run", config())
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    ends = [row for row in rows if "charts/episodic_return" in row]
    assert np.diff([0, *(row["env_steps"] for row in ends)]).tolist() == [row["charts/episodic_length"] for row in ends]
    losses = [(row["env_steps"], row["losses/batches"]) for row in rows if "losses/batches" in row]
    assert losses == [(101, 61.0), (201, 161.0)]


def test_env_steps_count_the_action_repeat(checker: Checker, tmp_path: Path) -> None:
    repeated = dataclasses.replace(config(), env=dataclasses.replace(config().env, action_repeat=4))
    checker.repeat, checker.learns_from = 4, 1_000
    outcome = train(tmp_path / "run", repeated)
    assert (outcome.env_steps, len(checker.acted)) == (300, 75)
    assert [row["env_steps"] for row in read_rows(tmp_path / "run" / "evaluations.jsonl")] == [100, 132, 200, 300]


def test_a_larger_budget_extends_a_finished_run(checker: Checker, tmp_path: Path) -> None:
    train(tmp_path / "run", config(200))
    train(tmp_path / "run", config(300))
    assert checker.acted == list(range(300))
    assert checker.batches == 260
    assert train(tmp_path / "run", config(300)).sentence.startswith("This run of 300 env steps is finished")


def test_an_environment_that_is_not_deterministic_is_said(
    checker: Checker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path / "run", config(), stop_after="0.05s")
    monkeypatch.setattr("curl_rl.envs.worker._replay", lambda env, seed, actions: env.reset(seed=seed + 1)[0])
    outcome = train(tmp_path / "run", config())
    assert outcome.finished
    assert "is not deterministic" in capsys.readouterr().err
