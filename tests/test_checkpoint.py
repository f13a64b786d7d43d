"""Checkpoints: incremental, atomic, checked, and unable to run code."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from curl_rl.checkpoint import CheckpointStore
from curl_rl.errors import UserError

SHAPE = (1, 4, 4)


def frames(begin: int, end: int) -> np.ndarray:
    return (
        np.stack([np.full(SHAPE, n % 256, np.uint8) for n in range(begin, end)])
        if end > begin
        else np.zeros((0, *SHAPE), np.uint8)
    )


def save(store: CheckpointStore, step: int, begin: int, end: int, oldest: int = 0, **state: Any) -> int:
    tensors = {"agent": {"w": torch.full((3,), float(step))}, "replay": {"r": torch.arange(step)}}
    return store.save(tensors, {"step": step, **state}, frames(begin, end), begin, oldest)


def stored_frames(store: CheckpointStore) -> np.ndarray:
    checkpoint, _ = store.load()
    assert checkpoint is not None
    return np.concatenate([store.frames(s, SHAPE, torch.uint8).numpy() for s in checkpoint.segments])


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    state = {"bytes": b"\x00\xff", "array": np.arange(6).reshape(2, 3), "none": None, "nested": {"list": [1, 2.5, "x"]}}
    save(CheckpointStore(tmp_path), 5, 0, 7, **state)
    checkpoint, complaints = CheckpointStore(tmp_path).load()
    assert checkpoint is not None
    assert complaints == []
    assert torch.equal(checkpoint.tensors["agent"]["w"], torch.full((3,), 5.0))
    assert checkpoint.state["bytes"] == b"\x00\xff"
    assert np.array_equal(checkpoint.state["array"], np.arange(6).reshape(2, 3))
    assert checkpoint.state["nested"] == {"list": [1, 2.5, "x"]}
    assert np.array_equal(stored_frames(CheckpointStore(tmp_path)), frames(0, 7))


def test_nothing_saved_is_no_checkpoint(tmp_path: Path) -> None:
    assert CheckpointStore(tmp_path / "none").load() == (None, [])


def test_only_new_frames_are_written(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 1, 0, 100)
    before = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "segments").iterdir()}
    assert store.saved_until() == 100
    save(store, 2, 100, 110)
    now = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "segments").iterdir()}
    assert before.items() <= now.items()
    assert np.array_equal(stored_frames(store), frames(0, 110))


def test_frames_that_left_the_ring_leave_the_disk(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    for n in range(6):
        save(store, n, 10 * n, 10 * n + 10, oldest=max(0, 10 * n - 15))
    assert len(list((tmp_path / "segments").iterdir())) <= 4  # those of the last two generations
    assert len(list(tmp_path.glob("generation-*"))) == 2
    assert np.array_equal(stored_frames(store)[-10:], frames(50, 60))


@pytest.mark.parametrize("victim", ["agent.safetensors", "state.json", "manifest.json", "segment"])
def test_the_last_good_one_is_used_when_the_newest_is_damaged(tmp_path: Path, victim: str) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 1, 0, 10)
    save(store, 2, 10, 20)
    newest = tmp_path / "generation-00000002"
    file = newest / victim if victim != "segment" else tmp_path / "segments" / "frames-0000000010-0000000020.bin"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)
    store = CheckpointStore(tmp_path)
    checkpoint, complaints = store.load()
    assert checkpoint is not None
    assert checkpoint.state["step"] == 1
    assert "damaged" in complaints[0]
    save(store, 3, 10, 20)  # what was lost is written again
    assert np.array_equal(stored_frames(CheckpointStore(tmp_path)), frames(0, 20))


def test_when_none_is_whole_it_says_so(tmp_path: Path) -> None:
    save(CheckpointStore(tmp_path), 1, 0, 10)
    (tmp_path / "generation-00000001" / "agent.safetensors").write_bytes(b"nonsense")
    with pytest.raises(UserError, match="None of the checkpoints"):
        CheckpointStore(tmp_path).load()


def test_a_full_disk_damages_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 1, 0, 10)
    kept = sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*"))
    from curl_rl import checkpoint as module

    real = module._write_synced
    for failing in range(4):  # whichever file it is that no longer fits
        calls = 0

        def full(path: Path, data: bytes, failing: int = failing) -> None:
            nonlocal calls
            calls += 1
            if calls > failing:
                path.write_bytes(bytes(data)[:3])
                raise OSError(28, "No space left on device")
            real(path, data)

        monkeypatch.setattr(module, "_write_synced", full)
        with pytest.raises(UserError, match="no space left"):
            save(store, 2, 10, 20)
        monkeypatch.setattr(module, "_write_synced", real)
        assert sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*")) == kept
        checkpoint, complaints = CheckpointStore(tmp_path).load()
        assert checkpoint is not None
        assert (checkpoint.state["step"], complaints) == (1, [])


class _Bomb:
    def __init__(self, target: Path):
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.target,))


def test_a_hostile_checkpoint_cannot_run_code(tmp_path: Path) -> None:
    target = tmp_path / "exploded"
    bomb = pickle.dumps(_Bomb(target))
    store_path = tmp_path / "checkpoint"
    save(CheckpointStore(store_path), 1, 0, 10)
    generation = store_path / "generation-00000001"
    manifest = json.loads((generation / "manifest.json").read_text())
    import hashlib

    (generation / "agent.safetensors").write_bytes(bomb)
    manifest["files"]["agent.safetensors"] = {"bytes": len(bomb), "sha256": hashlib.sha256(bomb).hexdigest()}
    (generation / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError):
        CheckpointStore(store_path).load()
    assert not target.exists()


@pytest.mark.parametrize("name", ["../../outside.bin", "/etc/passwd"])
def test_a_manifest_cannot_point_outside(tmp_path: Path, name: str) -> None:
    save(CheckpointStore(tmp_path), 1, 0, 10)
    file = tmp_path / "generation-00000001" / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["segments"][0]["name"] = name
    file.write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="names a file outside"):
        CheckpointStore(tmp_path).load()
