"""A run directory: whose it is, what it holds, whether it is done.

config.json  runtime.json  metrics.jsonl  metrics.csv  evaluations.jsonl  tensorboard/  checkpoint/  scores.csv  done
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
from pathlib import Path
from typing import Any

from .config import Config, SACConfig, differences, from_json, to_json
from .errors import UserError
from .log import disk_error, replace_file


def default_directory(config: Config) -> Path:
    """runs/TASK/PRESET/seed-N: the same command finds its run again."""
    return Path("runs") / config.task.replace("/", "-") / config.preset / f"seed-{config.seed}"


class RunDirectory:
    """One run on disk. Naming it only checks that it is ours; `open` creates it and holds its lock."""

    def __init__(self, path: Path, config: Config):
        self.path = path
        self.config = self._agree(config)

    def open(self) -> None:
        """From here on the directory exists, says whose it is, and is nobody else's."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = (self.path / ".lock").open("a")
        except OSError as error:
            raise disk_error(error, self.path) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise UserError(
                f"Another process is working on {self.path}; wait for it, or choose another place with --directory."
            ) from error
        (self.path / "done").unlink(missing_ok=True)  # a larger budget: no longer done
        replace_file(self.path / "config.json", (json.dumps(to_json(self.config), indent=2) + "\n").encode())

    def _agree(self, config: Config) -> Config:
        """The config to run with: what is recorded here, with the larger of the two budgets."""
        file = self.path / "config.json"
        if not file.exists():
            if self.path.is_dir() and any(self.path.iterdir()) and not (self.path / ".lock").exists():
                raise UserError(f"{self.path} holds other files and no run; choose an empty place with --directory.")
            return config
        recorded = read_config(self.path)
        config = _as_recorded(config, recorded)
        if config.env_steps < recorded.env_steps and not self.is_done:
            raise UserError(
                f"{self.path} holds an unfinished run of {recorded.env_steps:,} env steps, more than the "
                f"{config.env_steps:,} asked for; take at least as many, or choose another place with --directory."
            )
        longer = max(recorded.env_steps, config.env_steps)
        config = dataclasses.replace(config, env_steps=longer)
        found = differences(dataclasses.replace(recorded, env_steps=longer), config)
        if found:
            raise UserError(
                f"{self.path} holds a run with another config ({'; '.join(found)}); "
                "choose another place with --directory, or leave those flags out to go on with it."
            )
        return config

    @property
    def is_done(self) -> bool:
        return (self.path / "done").exists()

    def is_finished(self) -> bool:
        """Done, and for a budget no smaller than asked for now."""
        return self.is_done and read_json(self.path / "done")["env_steps"] >= self.config.env_steps

    def mark_done(self, summary: dict[str, Any]) -> None:
        replace_file(self.path / "done", (json.dumps(summary, indent=2) + "\n").encode())

    def record_machine(self, facts: dict[str, Any]) -> str | None:
        """Remember on what the run goes on; a sentence where that differs from before: exact repetition ends there."""
        file = self.path / "runtime.json"
        before = read_json(file) if file.exists() else None
        replace_file(file, (json.dumps(facts, indent=2) + "\n").encode())
        changed = [key for key in facts if before is not None and before.get(key) != facts[key] and key != "command"]
        if not changed:
            return None
        what = "; ".join(f"{key}: {before.get(key)!r} → {facts[key]!r}" for key in changed) if before else ""
        return f"This run began under other conditions ({what}): it goes on, but no longer repeats to the bit."

    def close(self) -> None:
        self._lock.close()


def _as_recorded(config: Config, recorded: Config) -> Config:
    """`auto` means here what it meant when the run began."""
    agent, before = config.agent, recorded.agent
    if isinstance(agent, SACConfig) and isinstance(before, SACConfig) and agent.precision == "auto":
        return dataclasses.replace(config, agent=dataclasses.replace(agent, precision=before.precision))
    return config


def read_config(directory: Path) -> Config:
    """The config of a run, or a sentence that says what is wrong with the directory."""
    file = directory / "config.json"
    if not file.exists():
        raise UserError(f"{directory} is not a run directory: it has no config.json.")
    return from_json(Config, read_json(file), str(file))


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); restore it, or move the run away and start anew.") from error
