"""Exact resume: a run that was killed again and again equals, to the bit, one that never was."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from curl_rl.checkpoint import CheckpointStore
from curl_rl.log import WALL_CLOCK_TAGS, read_rows

SMALL_SAC = (
    "--agent.batch-size=8",
    "--agent.hidden-size=32",
    "--agent.filters=4",
    "--agent.feature-size=8",
    "--agent.precision=fp32",
    "--agent.first-random-agent-steps=100",
    "--agent.replay-capacity=300",
    "--evaluation.episodes=2",
)
STEPS = 700


def command(directory: Path, *flags: str, task: str = "fake-continuous", steps: int = STEPS) -> list[str]:
    fixed = [f"--env-steps={steps}", "--evaluation.every-env-steps=250", "--threads=1", f"--directory={directory}"]
    return [sys.executable, "-m", "curl_rl.cli", "train", task, *fixed, *flags]


def finish(directory: Path, *flags: str, **options: Any) -> str:
    done = subprocess.run(command(directory, *flags, **options), capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert (directory / "done").exists()
    return done.stdout + done.stderr


def start(directory: Path, *flags: str, **options: Any) -> subprocess.Popen[str]:
    """A run that has got as far as to say what it does."""
    process = subprocess.Popen(
        command(directory, *flags, **options), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )
    assert process.stderr is not None
    process.stderr.readline()
    return process


def rows(path: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in WALL_CLOCK_TAGS} for row in read_rows(path)]


def assert_equal_runs(one: Path, other: Path) -> None:
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        assert rows(one / name) == rows(other / name)
    assert rows(one / "evaluations.jsonl")
    for group in ("agent", "replay"):
        a, b = (CheckpointStore(run / "checkpoint").load()[0] for run in (one, other))
        assert a is not None
        assert b is not None
        assert a.tensors[group].keys() == b.tensors[group].keys()
        for name, tensor in a.tensors[group].items():
            assert tensor.equal(b.tensors[group][name]), name


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("uninterrupted") / "run"
    finish(directory, *SMALL_SAC)
    return directory


def test_twenty_kills_change_nothing(uninterrupted: Path, tmp_path: Path) -> None:
    """SIGKILL at random moments: while acting, learning, evaluating, saving. A run that ends is followed by another."""
    moments = random.Random(0)
    runs = [tmp_path / "run-0"]
    kills = 0
    while kills < 20:
        process = start(runs[-1], *SMALL_SAC, "--checkpoint-every=0.05s")
        try:
            process.wait(moments.uniform(0.0, moments.choice([0.3, 2.5])))  # the start, or anywhere up to the end
        except subprocess.TimeoutExpired:
            process.kill()
            kills += 1
        process.communicate()
        if (runs[-1] / "done").exists():
            runs.append(tmp_path / f"run-{len(runs)}")
    for run in runs:
        finish(run, *SMALL_SAC)
        assert_equal_runs(uninterrupted, run)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_polite_signal_saves_and_says_so(uninterrupted: Path, tmp_path: Path, number: signal.Signals) -> None:
    directory = tmp_path / "run"
    process = start(directory, *SMALL_SAC)
    time.sleep(0.3)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "Paused at" in out
    assert "Traceback" not in err
    assert not (directory / "done").exists()
    assert "Going on from" in finish(directory, *SMALL_SAC)
    assert_equal_runs(uninterrupted, directory)


def test_pausing_by_the_clock_and_extending(uninterrupted: Path, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    for _ in range(3):
        done = subprocess.run(
            command(directory, *SMALL_SAC, "--stop-after=0.1s", steps=500), capture_output=True, text=True, check=True
        )
        assert "the same command goes on" in done.stdout
    finish(directory, *SMALL_SAC, steps=500)
    finish(directory, *SMALL_SAC)
    assert_equal_runs(uninterrupted, directory)


@pytest.mark.parametrize("task", ["fake-discrete", "fake-lives", "pong"])
def test_other_kinds_of_environment_resume_as_exactly(tmp_path: Path, task: str) -> None:
    """`fake-discrete` and Atari save their own state; lives go on across episodes."""
    flags = ("--preset=random", "--evaluation.episodes=1")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    finish(whole, *flags, task=task)
    for _ in range(2):
        subprocess.run(command(parts, *flags, "--stop-after=0.05s", task=task), capture_output=True, check=True)
    finish(parts, *flags, task=task)
    assert_equal_runs(whole, parts)


def test_a_damaged_newest_checkpoint_costs_only_time(uninterrupted: Path, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    process = start(directory, *SMALL_SAC, "--checkpoint-every=0.05s")
    deadline = time.monotonic() + 30
    while len(list(directory.glob("checkpoint/generation-*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    process.communicate()
    newest = max(directory.glob("checkpoint/generation-*"))
    (newest / "agent.safetensors").write_bytes(b"cut short")
    assert "is damaged" in finish(directory, *SMALL_SAC)
    assert_equal_runs(uninterrupted, directory)


def test_a_full_disk_ends_in_a_sentence_and_damages_nothing(uninterrupted: Path, tmp_path: Path) -> None:
    """A limit on the size of files stands in for the disk: the first checkpoint that is due does not fit."""
    directory = tmp_path / "run"
    subprocess.run(command(directory, *SMALL_SAC, "--stop-after=0.2s"), capture_output=True, check=True)
    kept = sorted(str(p.relative_to(directory)) for p in (directory / "checkpoint").rglob("*"))
    limited = f"ulimit -f 64; exec {' '.join(command(directory, *SMALL_SAC, '--checkpoint-every=0.01s'))}"
    done = subprocess.run(["bash", "-c", limited], capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert "Cannot write" in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(str(p.relative_to(directory)) for p in (directory / "checkpoint").rglob("*")) == kept
    finish(directory, *SMALL_SAC)
    assert_equal_runs(uninterrupted, directory)


def test_a_nan_stops_the_run_by_its_name(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    flags = (*SMALL_SAC, "--agent.learning-rate=1e30")
    done = subprocess.run(command(directory, *flags), capture_output=True, text=True)
    assert done.returncode == 2
    assert "losses/" in done.stderr or "agent." in done.stderr
    assert "Traceback" not in done.stderr
    for path in directory.glob("checkpoint/generation-*/agent.safetensors"):
        assert all(tensor.isfinite().all() for tensor in load_file(path).values())


def test_a_run_leaves_no_processes_behind(tmp_path: Path) -> None:
    process = start(
        tmp_path / "run", "--preset=random", "--evaluation.every-env-steps=50", "--evaluation.episodes=4", steps=10**6
    )
    time.sleep(2)
    children = _children(process.pid)
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 20
    while any(_alive(pid) for pid in children) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert children, "evaluation uses worker processes"
    assert not [pid for pid in children if _alive(pid)]


def _children(pid: int) -> list[int]:
    direct = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        if parent == pid:
            direct.append(int(folder.name))
    return direct + [grandchild for child in direct for grandchild in _children(child)]


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except OSError:
        return False


def test_checkpoints_hold_no_pickles(uninterrupted: Path) -> None:
    kinds = {path.suffix for path in (uninterrupted / "checkpoint").rglob("*") if path.is_file()}
    assert kinds == {".safetensors", ".json", ".bin"}
    json.loads(max((uninterrupted / "checkpoint").glob("generation-*/state.json")).read_text())
    assert os.path.getsize(uninterrupted / "metrics.csv") > 0
