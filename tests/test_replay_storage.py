"""What a replay's memory costs, and what happens when there is too little of it."""

import errno
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from curl_rl import storage
from curl_rl.errors import UserError
from curl_rl.replay import Replay, ReplaySpec
from curl_rl.storage import available_bytes

CPU = torch.device("cpu")
DMCONTROL = ReplaySpec((3, 100, 100), (6,), 100_000, stack=3)
ATARI = ReplaySpec(
    (1, 84, 84),
    (),
    100_000,
    stack=4,
    n_step=20,
    before_start="zeros",
    prioritised=True,
    action_dtype=torch.int64,
    end_frames=0.05,
)
SMALL = ReplaySpec((3, 10, 10), (2,), 100, stack=3, prioritised=True)


def test_the_promised_sizes() -> None:
    assert DMCONTROL.bytes_per_trial() <= 3.1e9
    assert ATARI.bytes_per_trial() <= 0.75e9


@pytest.mark.parametrize("spec", [SMALL, ReplaySpec((7,), (), 33, frame_dtype=torch.float32)])
def test_the_computed_size_is_the_allocated_one(spec: ReplaySpec) -> None:
    replay = Replay(spec, 3)
    tensors = [replay.frames.rows, *(ring for _, ring in replay._rings())]
    assert 3 * spec.bytes_per_trial() == sum(tensor.nbytes for tensor in tensors)


def machine(
    folder: Path, monkeypatch: pytest.MonkeyPatch, available_kb: int, groups: str, files: dict[str, str]
) -> None:
    """Let the files that Linux describes its memory by be these."""
    for name, text in {
        "meminfo": f"MemTotal: 9 kB\nMemAvailable: {available_kb} kB\n",
        "groups": groups,
        **files,
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.setattr(storage, "_MEMINFO", folder / "meminfo")
    monkeypatch.setattr(storage, "_MEMBERSHIPS", folder / "groups")
    monkeypatch.setattr(storage, "_CGROUPS", folder / "cgroup")


def test_available_memory_of_a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 10**6 < (available_bytes(CPU) or 0) < 10**15  # this one
    machine(tmp_path, monkeypatch, 2000, "0::/\n", {})
    assert available_bytes(CPU) == 2000 * 1024
    (tmp_path / "groups").unlink()
    assert available_bytes(CPU) == 2000 * 1024
    (tmp_path / "meminfo").unlink()
    assert available_bytes(CPU) is None


@pytest.mark.parametrize(
    ("groups", "folder", "names"),
    [
        ("0::/user/job\n", "cgroup/user/job", ("memory.max", "memory.current", "inactive_file")),
        ("0::/user/job\n", "cgroup/user", ("memory.max", "memory.current", "inactive_file")),
        ("0::/../outside\n", "cgroup", ("memory.max", "memory.current", "inactive_file")),
        (
            "3:cpu:/a\n7:memory:/job\n",
            "cgroup/memory/job",
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ),
    ],
)
def test_a_containers_limit_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: str, folder: str, names: tuple[str, str, str]
) -> None:
    limit, usage, cache = names
    files = {limit: "700000\n", usage: "300000\n", "memory.stat": f"anon 250000\n{cache} 50000\n"}
    machine(tmp_path, monkeypatch, 2000, groups, {f"{folder}/{name}": text for name, text in files.items()})
    assert available_bytes(CPU) == 450_000
    (tmp_path / folder / limit).write_text("max\n")
    assert available_bytes(CPU) == 2000 * 1024


def test_too_large_a_replay_is_refused_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(tmp_path, monkeypatch, 2_000_000, "0::/\n", {})
    with pytest.raises(UserError, match=r"needs 3\.09 GB and cpu has 2\.05 GB free: choose a smaller replay capacity"):
        Replay(DMCONTROL)


def fill(replay: Replay, steps: int) -> None:
    no, random = np.zeros(1, bool), np.random.default_rng(0)
    replay.begin(random.integers(0, 256, (1, 3, 10, 10), np.uint8), ~no, no)
    for _ in range(steps):
        frame = random.integers(0, 256, (1, 3, 10, 10), np.uint8)
        replay.add(np.zeros((1, 2), np.float32), np.zeros(1, np.float32), no, no, frame)


def test_a_replay_in_a_file_is_the_same_replay(tmp_path: Path) -> None:
    path = tmp_path / "frames"
    in_file, in_memory = Replay(SMALL, path=path), Replay(SMALL)
    assert path.stat().st_size == (SMALL.slots + 1) * 300
    assert path.stat().st_blocks * 512 >= path.stat().st_size  # reserved, not sparse
    fill(in_file, 250)
    fill(in_memory, 250)
    drawn = torch.arange(0, 2**32, 2**27)[None]
    assert torch.equal(in_file.sample(drawn).obs, in_memory.sample(drawn).obs)
    written = np.memmap(path, np.uint8, "r")
    assert np.array_equal(written, in_memory.frames.rows.numpy().ravel())


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file larger than 10,000 bytes: the nearest to a full disk that a test can have."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.usefixtures("small_files")
def test_no_room_for_the_file_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"needs 0\.00 GB on the disk of .*frames, which has .* free: make room"):
        Replay(SMALL, path=tmp_path / "frames")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(UserError, match="make room"):
        Replay(SMALL, path=tmp_path / "frames")
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"missing/frames cannot be made \(No such file or directory\)"):
        Replay(SMALL, path=tmp_path / "missing" / "frames")
    with pytest.raises(UserError, match="cannot be made"):
        Replay(SMALL, path=tmp_path)
    assert tmp_path.is_dir()


def test_allocated_memory_is_really_there() -> None:
    """Not pages that the system promised and will find missing hours later. (This process has some to reuse.)"""
    program = """
import resource
from pathlib import Path
from curl_rl.replay import Replay, ReplaySpec

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

before = resident()
replay = Replay(ReplaySpec((3, 100, 100), (2,), 2000))
print((resident() - before) / replay.frames.rows.nbytes)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert float(done.stdout) > 0.9
