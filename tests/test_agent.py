"""Looking at a run from outside: evaluate it, film it, export its agent, load that without anything else."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import curl_rl
from curl_rl.agent import export, load
from curl_rl.build import evaluate_run, film_run, train
from curl_rl.config import Runtime
from curl_rl.errors import UserError
from curl_rl.presets import configure, override


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("agent") / "run"
    config = configure("fake-continuous", env_steps=120)
    small = {"batch_size": 8, "hidden_size": 32, "filters": 4, "feature_size": 8, "first_random_agent_steps": 100}
    for name, value in {**small, "precision": "fp32"}.items():
        config = override(config, f"agent.{name}", value)
    train(override(config, "evaluation.episodes", 2), Runtime(directory=directory, threads=1))
    return directory


def test_an_exported_agent_plays_as_the_run_does(run: Path, tmp_path: Path) -> None:
    """Alone in a folder, in two lines, with the same return as the run's own evaluation of that episode."""
    file = tmp_path / "elsewhere" / "agent.safetensors"
    export(run, file)
    agent = curl_rl.load(file)
    env = agent.make_env()
    assert agent.card["env_steps"] == 120
    assert json.loads(file.with_suffix(".json").read_text()) == agent.card

    score, _ = film_run(run, seed=3, size=64)
    from curl_rl.envs import episode_seed

    observation, _ = env.reset(seed=episode_seed(0, "play", 3))
    agent.begin()
    played, over = 0.0, False
    while not over:
        observation, reward, terminated, truncated, _ = env.step(agent.act(observation))
        played, over = played + float(reward), terminated or truncated
    assert played == pytest.approx(score, abs=1e-5)


def test_a_run_exports_its_agent_when_it_ends(run: Path) -> None:
    assert load(run / "agent.safetensors").config.task == "fake-continuous"


def test_beginning_again_forgets_the_last_episode(run: Path) -> None:
    agent = load(run / "agent.safetensors")
    frames = np.random.default_rng(0).integers(0, 256, (4, 3, 20, 20), np.uint8)
    first = agent.act(frames[0])
    agent.act(frames[1])
    agent.begin()
    assert np.array_equal(agent.act(frames[0]), first)
    assert not np.array_equal(agent.act(frames[2]), first)


def test_evaluating_a_run_is_repeatable_and_leaves_it_alone(run: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in run.rglob("*")}
    one, two, other = (evaluate_run(run, 5, seed, "cpu") for seed in (0, 0, 1))
    assert one == two
    assert one["returns"] != other["returns"]
    assert one["mean"] == pytest.approx(np.mean(one["returns"]))
    assert {p: p.stat().st_mtime_ns for p in run.rglob("*")} == before


def test_the_video_shows_the_episode(run: Path) -> None:
    from PIL import Image

    _, file = film_run(run, seed=1, size=64)
    with Image.open(file) as video:
        assert video.n_frames > 3
        assert video.info["duration"] >= 20


@pytest.mark.parametrize("damage", ["no run", "no checkpoint", "not tensors", "no card", "another kind"])
def test_what_cannot_be_opened_is_said(run: Path, tmp_path: Path, damage: str) -> None:
    if damage == "no run":
        with pytest.raises(UserError, match=r"no config\.json"):
            evaluate_run(tmp_path, 1, 0, "cpu")
    elif damage == "no checkpoint":
        shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("generation-*"))
        with pytest.raises(UserError, match="no checkpoint yet"):
            export(tmp_path / "run", tmp_path / "agent.safetensors")
    elif damage == "not tensors":
        (tmp_path / "agent.safetensors").write_bytes(b"nonsense")
        with pytest.raises(UserError, match="not a file of tensors"):
            load(tmp_path / "agent.safetensors")
    else:
        from safetensors.torch import save_file

        metadata = {} if damage == "no card" else {"card": json.dumps({"format": "something else"})}
        save_file({"w": torch.zeros(1)}, tmp_path / "agent.safetensors", metadata=metadata)
        with pytest.raises(UserError, match="holds no agent of curl-rl"):
            load(tmp_path / "agent.safetensors")
