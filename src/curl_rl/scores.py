"""scores.csv: one row per trial and protocol, the form of every result that is kept."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import fmean, pstdev

from .errors import UserError
from .log import write_csv


@dataclass(frozen=True)
class Score:
    """What one trial scored, and under which conditions."""

    suite: str
    """The benchmark that the row belongs to, where it belongs to one."""
    task: str
    preset: str
    seed: int
    protocol: str
    """How the score was taken, for example `final`."""
    env_steps: int
    agent_steps: int
    episodes: int
    mean: float
    std: float
    """Over the episodes."""
    wall_s: float
    """Training and evaluation up to here, without pauses."""
    device: str
    versions: str
    """JSON."""
    command: str


def summarise(returns: Sequence[float]) -> tuple[float, float]:
    """Mean and (population) standard deviation over episodes."""
    return fmean(returns), pstdev(returns)


def write_scores(scores: Iterable[Score], path: Path) -> None:
    write_csv([asdict(score) for score in scores], path)


def read_scores(path: Path) -> list[Score]:
    """All rows of a file; a cell is converted to its column's type."""
    convert = {"int": int, "float": float, "str": str}
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [Score(**{f.name: convert[str(f.type)](row[f.name]) for f in fields(Score)}) for row in rows]


def versions_cell(versions: dict[str, object]) -> str:
    return json.dumps({name: version for name, version in versions.items() if version is not None}, sort_keys=True)


def gather(paths: Iterable[Path]) -> list[Score]:
    """The rows of every scores.csv at or below these paths."""
    found: list[Score] = []
    for path in paths:
        files = [path] if path.is_file() else sorted(path.rglob("scores.csv"))
        if not files:
            raise UserError(f"{path} holds no scores.csv: it is no run, or none that has finished.")
        for file in files:
            try:
                found += read_scores(file)
            except (KeyError, ValueError, TypeError) as error:
                raise UserError(f"{file} is not a table of scores ({error!r}).") from error
    return found
