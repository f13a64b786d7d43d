"""The command line by hand: help in a screenful; every mistake one sentence, a remedy, and nothing half-written."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from curl_rl.cli import main


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*arguments: str) -> int:
    return main(list(arguments))


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",), ("help",)])
def test_help_fits_a_screen_and_has_three_examples(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24
    assert sum(line.startswith("  curl-rl") and "#" in line for line in lines) == 3


MISTAKES = {
    "unknown command": (("trian",), "did you mean 'train'"),
    "no task": (("train",), "Name the task first"),
    "unknown task": (("train", "cartpole-swingip"), "did you mean cartpole-swingup"),
    "unknown preset": (("train", "fake-continuous", "--preset", "curl-sax"), "did you mean 'curl-sac'"),
    "preset without a value": (("train", "fake-continuous", "--preset"), "--preset needs a value"),
    "unknown flag": (("train", "fake-continuous", "--agent.batch-sise", "3"), "did you mean --agent.batch-size"),
    "wrong type": (("train", "fake-continuous", "--agent.batch-size", "many"), "--agent.batch-size"),
    "wrong choice": (("train", "fake-continuous", "--agent.contrastive.step", "both"), "own"),
    "a flag of another agent": (
        ("train", "pong", "--preset", "random", "--agent.batch-size", "3"),
        "--agent.batch-size",
    ),
    "negative budget": (("train", "fake-continuous", "--env-steps", "-5"), "--env-steps is -5; it must be at least 1"),
    "empty batch": (("train", "fake-continuous", "--agent.batch-size", "0"), "--agent.batch-size is 0"),
    "discrete task": (("train", "fake-discrete", "--preset", "curl-sac"), "4 discrete actions"),
    "crop too large": (("train", "fake-continuous", "--agent.crop-size", "50"), "agent.crop_size is 50"),
    "no such device": (("train", "fake-continuous", "--device", "cuda:7"), "try --device cpu"),
    "strange device": (("train", "fake-continuous", "--device", "tpu"), "is not a device"),
    "strange time": (("train", "fake-continuous", "--stop-after", "soon"), "a number with a unit"),
    "camera of a game": (("train", "pong", "--preset", "random", "--env.camera", "1"), "no task of DMControl"),
    "contradiction": (("train", "pong", "--preset", "random", "--env.action-repeat", "5"), "give both the same values"),
    "no run": (("scores", "nowhere", "scores.csv"), "holds no scores.csv"),
}


@pytest.mark.parametrize(("arguments", "says"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_sentence(arguments: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) != 0
    captured = capsys.readouterr()
    assert says in captured.err
    assert captured.out == ""
    assert len(captured.err.strip().splitlines()) == 1
    assert list(Path().iterdir()) == []


def test_too_little_memory_is_refused_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("curl_rl.storage.available_bytes", lambda device: 10_000)
    assert run("train", "fake-continuous", "--env-steps", "5000") == 2
    assert "the replay needs" in capsys.readouterr().err
    assert list(Path().iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_unwritable_place_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tmp_path.chmod(0o500)
    assert run("train", "fake-continuous", "--preset", "random", "--directory", str(tmp_path / "run")) == 2
    assert "permission denied" in capsys.readouterr().err


def test_a_file_in_the_way_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert run("train", "fake-continuous", "--preset", "random", "--directory", str(tmp_path / "file" / "run")) == 2
    assert "Cannot write" in capsys.readouterr().err


def test_presets_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("presets") == 0
    out = capsys.readouterr().out
    assert "curl-sac" in out
    assert "cheetah-run" in out


def test_flags_are_shown_with_their_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        run("train", "cheetah-run", "--help")
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert "--agent.learning-rate" in out
    assert "0.0002" in out
    assert "--stop-after" in out


def test_a_finished_run_says_so_and_is_gathered(capsys: pytest.CaptureFixture[str]) -> None:
    command = ("train", "fake-discrete", "--preset", "random", "--env-steps", "200", "--evaluation.episodes", "2")
    assert run(*command) == 0
    assert "Finished 200 env steps" in capsys.readouterr().out
    assert run(*command) == 0
    assert "is finished; a larger --env-steps extends it" in capsys.readouterr().out
    assert run("scores", "runs", "all.csv") == 0
    assert Path("all.csv").read_text().count("fake-discrete") >= 1


def test_a_reader_that_leaves_is_no_error() -> None:
    command = f"{sys.executable} -m curl_rl.cli presets | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert "Traceback" not in done.stderr


def test_speed_has_its_keys(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    small = ("--agent.batch-size=4", "--agent.hidden-size=16", "--agent.filters=4", "--threads=1")
    monkeypatch.setattr("curl_rl.speed.SECONDS", 0.1)
    assert run("speed", "fake-continuous", *small, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    keys = {
        "update_ms",
        "naive_update_ms",
        "speedup",
        "agent_step_ms",
        "env_ms",
        "gemm_share",
        "peak_memory_gib",
        "device",
    }
    assert keys <= result.keys()
    assert 0 < result["env_ms"] < result["agent_step_ms"]
    assert run("speed", "fake-continuous", "--preset", "random") == 2


def test_the_naive_update_runs_and_learns_something() -> None:
    """The yardstick must really do its work: its weights move, its targets follow."""
    from curl_rl.naive import Naive

    update = Naive(batch=2, actions=1)
    before = {
        name: value.clone() for name, value in [*update.critic.named_parameters(), *update.actor.named_parameters()]
    }
    target = [value.clone() for value in update.target.parameters()]
    update(0)
    now = dict([*update.critic.named_parameters(), *update.actor.named_parameters()])
    assert all(not now[name].equal(value) for name, value in before.items())
    assert any(not a.equal(b) for a, b in zip(target, update.target.parameters(), strict=True))
