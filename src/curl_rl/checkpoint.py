"""Checkpoints: atomic, hashed, incremental, and free of anything that could run code.

    checkpoint/
      segments/frames-0000000000-0000001250.bin    frames by absolute position, raw, written once and never again
      generation-00000001/
        agent.safetensors, replay.safetensors       tensors
        state.json                                  counters and environments
        manifest.json                               hash and size of every file above and of every segment in use

A generation is written into a temporary folder, synced, and renamed: it is whole or it is not there. The last two are
kept, and the newest whose files all match their hashes is loaded.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from .errors import UserError
from .log import disk_error

KEPT_GENERATIONS = 2
Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Segment:
    """Frames [begin, end) of the replay, by absolute position, in one file."""

    begin: int
    end: int
    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Checkpoint:
    """All that a run needs to go on."""

    tensors: dict[str, dict[str, torch.Tensor]]
    """Named groups: `agent`, `replay`."""
    state: dict[str, Any]
    """Plain values: counters, file sizes, environments."""
    segments: tuple[Segment, ...]
    """The frames, oldest first; read them by `CheckpointStore.frames`."""


class CheckpointStore:
    """The checkpoints of one run."""

    def __init__(self, directory: Path):
        self.directory = directory
        self._segments: tuple[Segment, ...] = ()

    def saved_until(self) -> int:
        """The absolute position up to which frames are on disk."""
        return self._segments[-1].end if self._segments else 0

    def save(
        self, tensors: Mapping[str, Tensors], state: Mapping[str, Any], frames: np.ndarray, begin: int, oldest: int
    ) -> int:
        """Write one generation; `frames` are those from position `begin` on, `oldest` is the first still needed.

        Returns the bytes written besides frames. What was there before stays good until the very last step.
        """
        try:
            return self._save(tensors, state, frames, begin, oldest)
        except OSError as error:
            raise disk_error(error, self.directory) from error

    def _save(
        self, tensors: Mapping[str, Tensors], state: Mapping[str, Any], frames: np.ndarray, begin: int, oldest: int
    ) -> int:
        number = max((n for n, _ in self._generations()), default=0) + 1
        kept = [segment for segment in self._segments if segment.end > oldest]
        new = [self._write_segment(frames, begin)] if len(frames) else []
        try:
            return self._write(number, tensors, state, [*kept, *new])
        except OSError:
            for segment in new:  # nobody will ever ask for it
                (self.directory / "segments" / segment.name).unlink(missing_ok=True)
            raise

    def _write(
        self, number: int, tensors: Mapping[str, Tensors], state: Mapping[str, Any], segments: Sequence[Segment]
    ) -> int:
        files = {f"{name}.safetensors": save_tensors(_contiguous(group)) for name, group in tensors.items()}
        files["state.json"] = json.dumps(_encode(dict(state))).encode()
        manifest = {
            "files": {name: {"bytes": len(data), "sha256": _sha256(data)} for name, data in files.items()},
            "segments": [vars(segment) for segment in segments],
        }
        files["manifest.json"] = json.dumps(manifest, indent=1).encode()
        self._write_generation(number, files)
        self._segments = tuple(segments)
        self._drop_old()
        return sum(len(data) for data in files.values())

    def _write_segment(self, frames: np.ndarray, begin: int) -> Segment:
        folder = self.directory / "segments"
        folder.mkdir(parents=True, exist_ok=True)
        end = begin + len(frames)
        data = np.ascontiguousarray(frames).data.cast("B")
        name = f"frames-{begin:010d}-{end:010d}.bin"
        temporary = folder / (name + ".partial")
        try:
            _write_synced(temporary, data)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        temporary.replace(folder / name)
        _sync_directory(folder)
        return Segment(begin, end, name, len(data), _sha256(data))

    def _write_generation(self, number: int, files: Mapping[str, bytes]) -> None:
        temporary = self.directory / "partial"
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            temporary.mkdir(parents=True)
            for name, data in files.items():
                _write_synced(temporary / name, data)
            _sync_directory(temporary)
        except OSError:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        temporary.rename(self.directory / f"generation-{number:08d}")
        _sync_directory(self.directory)

    def _drop_old(self) -> None:
        """Remove generations beyond the last two, and segments that neither of them needs."""
        generations = self._generations()
        for _, path in generations[:-KEPT_GENERATIONS]:
            shutil.rmtree(path, ignore_errors=True)
        needed = {segment.name for _, path in generations[-KEPT_GENERATIONS:] for segment in _segments_of(path)}
        for path in (self.directory / "segments").glob("*"):
            if path.name not in needed:
                path.unlink(missing_ok=True)

    def load(self, only_look: bool = False) -> tuple[Checkpoint | None, list[str]]:
        """The newest whole generation (None: nothing was saved), and a sentence for each newer one that is damaged.

        To go on from it, what is damaged is cleared away and the frames are checked; `only_look` does neither.
        """
        complaints: list[str] = []
        damaged: list[Path] = []
        generations = self._generations()
        for _, path in reversed(generations):
            try:
                checkpoint = self._load_generation(path, check_frames=not only_look)
            except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
                complaints.append(f"The checkpoint {path} is damaged ({error}); taking the one before it.")
                damaged.append(path)
                continue
            for broken in damaged if not only_look else ():
                shutil.rmtree(broken, ignore_errors=True)
            self._segments = checkpoint.segments
            return checkpoint, complaints
        if generations:
            raise UserError(
                f"None of the checkpoints in {self.directory} is whole; move that folder away to start this run anew. "
                + " ".join(complaints)
            )
        return None, complaints

    def _load_generation(self, path: Path, check_frames: bool) -> Checkpoint:
        manifest = json.loads((path / "manifest.json").read_bytes())
        data = {}
        for name, entry in manifest["files"].items():
            if Path(name).name != name:
                raise ValueError(f"{name!r} is not a file name")
            data[name] = (path / name).read_bytes()
            if _sha256(data[name]) != entry["sha256"]:
                raise ValueError(f"{name} does not match its hash")
        segments = tuple(_segments_of(path))
        for segment in segments if check_frames else ():
            if _sha256_of_file(self.directory / "segments" / segment.name) != segment.sha256:
                raise ValueError(f"{segment.name} does not match its hash")
        tensors = {Path(n).stem: load_tensors(d) for n, d in data.items() if n.endswith(".safetensors")}
        return Checkpoint(tensors, _decode(json.loads(data["state.json"])), segments)

    def frames(self, segment: Segment, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """The frames of one segment, mapped from its file."""
        path, count = self.directory / "segments" / segment.name, segment.end - segment.begin
        flat = torch.from_file(str(path), size=segment.bytes // dtype.itemsize, dtype=dtype)
        return flat.reshape(count, *shape)

    def _generations(self) -> list[tuple[int, Path]]:
        found = self.directory.glob("generation-*")
        return sorted((int(path.name.split("-")[1]), path) for path in found if path.name.split("-")[1].isdigit())


def _segments_of(generation: Path) -> list[Segment]:
    try:
        entries = json.loads((generation / "manifest.json").read_bytes())["segments"]
        segments = [Segment(**entry) for entry in entries]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"its manifest cannot be read: {error}") from error
    if any(Path(segment.name).name != segment.name for segment in segments):
        raise ValueError("its manifest names a file outside its folder")
    return segments


def _contiguous(group: Tensors) -> dict[str, torch.Tensor]:
    """On the host, each in memory of its own, as the file format needs them."""
    return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in group.items()}


def _encode(value: Any) -> Any:
    """Bytes and arrays inside the state, as JSON."""
    if isinstance(value, bytes):
        return {"__bytes__": base64.b64encode(value).decode()}
    if isinstance(value, np.ndarray):
        data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {"__array__": data, "dtype": value.dtype.str, "shape": list(value.shape)}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {key: _encode(item) for key, item in value.items()}
    return [_encode(item) for item in value] if isinstance(value, list | tuple) else value


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "__bytes__" in value:
        return base64.b64decode(value["__bytes__"])
    if "__array__" in value:
        dtype = np.dtype(value["dtype"])
        if dtype.hasobject:
            raise ValueError("an array of Python objects is not data")
        return np.frombuffer(base64.b64decode(value["__array__"]), dtype).reshape(value["shape"]).copy()
    return {key: _decode(item) for key, item in value.items()}


def _sha256(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


def _sha256_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_synced(path: Path, data: bytes | memoryview) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
