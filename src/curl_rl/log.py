"""What a run writes while it goes on: append-only JSON lines, TensorBoard, CSV, and the progress line.

JSON lines are the truth; the CSV is made from them. Tags follow CleanRL's (`charts/episodic_return`, `losses/…`).
A missing value stays missing: nothing is filled in.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .errors import UserError

Row = Mapping[str, Any]
WALL_CLOCK_TAGS = ("wall_s", "charts/SPS")
"""The only fields in which a resumed run may differ from one that was never interrupted."""


def read_rows(path: Path) -> list[dict[str, Any]]:
    """All whole rows of a JSON-lines file. A last line cut short by a crash is left out; damage elsewhere as well."""
    rows = []
    for line in path.read_bytes().split(b"\n") if path.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:  # covers undecodable bytes, too
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


class JsonLines:
    """One append-only file of JSON objects, one a line, each line written and flushed whole."""

    def __init__(self, path: Path):
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")

    def append(self, row: Row) -> None:
        line = json.dumps({key: _plain(value) for key, value in row.items()}, allow_nan=False) + "\n"
        try:
            self._file.write(line.encode())
            self._file.flush()
        except OSError as error:
            raise disk_error(error, self.path) from error

    def size(self) -> int:
        """Bytes written so far: a checkpoint remembers them, and `cut_back` returns to them."""
        return self.path.stat().st_size

    def cut_back(self, size: int) -> None:
        """Drop what was written after a checkpoint; the resumed run writes it again."""
        self._file.flush()
        if self.size() > size:
            os.truncate(self.path, size)

    def close(self) -> None:
        self._file.close()


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinity: they are written as text, so that they are seen and not read as numbers."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def write_csv(rows: list[dict[str, Any]], path: Path) -> None:
    """The rows as CSV, columns in order of appearance, replaced as a whole so that no reader meets half a file."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    replace_file(path, text.getvalue().encode())


def replace_file(path: Path, content: bytes) -> None:
    """Write a file so that it is either the old one or the new one, whatever happens."""
    temporary = path.with_name(path.name + ".partial")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise disk_error(error, path) from error


def disk_error(error: OSError, path: Path) -> UserError:
    """What the system said about a file, as a sentence with a remedy."""
    reason = error.strerror or str(error)
    return UserError(
        f"Cannot write {path}: {reason.lower()}; free some space or choose another place with --directory, "
        "then run the same command again: everything up to the last checkpoint is safe."
    )


class RunLog:
    """The files of one run: metrics, evaluations, TensorBoard events."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.metrics = JsonLines(directory / "metrics.jsonl")
        self.evaluations = JsonLines(directory / "evaluations.jsonl")

    def begin(self, env_steps: int, sizes: Mapping[str, int]) -> None:
        """Open the log at a checkpoint (or at the very beginning): what was written after it is dropped."""
        from torch.utils.tensorboard import SummaryWriter  # here, because importing it costs what only runs should pay

        for file in (self.metrics, self.evaluations):
            file.cut_back(sizes.get(file.path.name, 0))
        purge = env_steps + 1 if env_steps else None
        self._tensorboard = SummaryWriter(str(self.directory / "tensorboard"), purge_step=purge, max_queue=100)

    def write(self, env_steps: int, row: Row) -> None:
        """Metrics of training at this many env steps."""
        self.metrics.append({"env_steps": env_steps, **row})
        self._scalars(env_steps, row)

    def write_evaluation(self, env_steps: int, row: Row) -> None:
        """One evaluation: its numbers, and each episode's return."""
        self.evaluations.append({"env_steps": env_steps, **row})
        self._scalars(env_steps, {"eval/episodic_return": row["mean"], "eval/episodic_return_std": row["std"]})

    def _scalars(self, env_steps: int, row: Row) -> None:
        for tag, value in row.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                self._tensorboard.add_scalar(tag, value, env_steps)

    def sizes(self) -> dict[str, int]:
        return {file.path.name: file.size() for file in (self.metrics, self.evaluations)}

    def flush(self) -> None:
        """Bring the derived files up to date."""
        write_csv(read_rows(self.metrics.path), self.directory / "metrics.csv")
        self._tensorboard.flush()

    def close(self) -> None:
        self.metrics.close()
        self.evaluations.close()
        if hasattr(self, "_tensorboard"):
            self._tensorboard.close()


class Progress:
    """One line that says how the run goes: rewritten in place on a terminal, printed now and then elsewhere."""

    def __init__(self, total_env_steps: int):
        self.total = total_env_steps
        self._terminal = sys.stderr.isatty()
        self._interval = 0.5 if self._terminal else 30.0
        self._last_shown = 0.0
        self._marks: list[tuple[float, int]] = []  # a sliding window, since the rate changes once learning begins

    def due(self) -> bool:
        return time.monotonic() - self._last_shown >= self._interval

    def show(self, env_steps: int, values: Mapping[str, float | None]) -> None:
        now = time.monotonic()
        self._last_shown = now
        self._marks = [*self._marks[-120:], (now, env_steps)]
        (then, before) = self._marks[0]
        rate = (env_steps - before) / (now - then) if now > then else 0.0
        left = duration((self.total - env_steps) / rate) if rate > 0 else "?"
        shown = "  ".join(f"{name} {value:.4g}" for name, value in values.items() if value is not None)
        text = f"{env_steps:,}/{self.total:,} env steps  {shown}  {rate:,.0f} steps/s  {left} left"
        if self._terminal:
            text = f"\r\x1b[2K{text[: os.get_terminal_size(sys.stderr.fileno()).columns - 1]}"
        print(text, end="" if self._terminal else "\n", file=sys.stderr, flush=True)

    def say(self, sentence: str) -> None:
        """A sentence of its own, without tearing the progress line."""
        print(("\r\x1b[2K" if self._terminal else "") + sentence, file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """1:02:03, or 4:05."""
    hours, rest = divmod(int(seconds), 3600)
    minutes, seconds = divmod(rest, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
