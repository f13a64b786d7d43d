"""Run directories: whose a directory is, when a run is finished, what is recorded; and score tables."""

import dataclasses
import json
from pathlib import Path

import pytest

from curl_rl.errors import UserError
from curl_rl.presets import configure, override
from curl_rl.run import RunDirectory, default_directory, read_config
from curl_rl.scores import Score, gather, read_scores, summarise, write_scores

CONFIG = configure("fake-continuous", "random", env_steps=1000)


def opened(path: Path, config: object = CONFIG) -> RunDirectory:
    directory = RunDirectory(path, config)  # type: ignore[arg-type]
    directory.open()
    return directory


def test_naming_a_directory_creates_nothing(tmp_path: Path) -> None:
    RunDirectory(tmp_path / "run", CONFIG)
    assert not (tmp_path / "run").exists()


def test_the_default_directory_is_found_again() -> None:
    assert default_directory(CONFIG) == Path("runs/fake-continuous/random/seed-0")
    assert default_directory(override(CONFIG, "task", "ALE/Pong-v5")).parts[1] == "ALE-Pong-v5"


def test_an_open_run_is_nobody_elses(tmp_path: Path) -> None:
    first = opened(tmp_path)
    with pytest.raises(UserError, match="Another process"):
        opened(tmp_path)
    first.close()
    opened(tmp_path).close()


def test_a_foreign_config_is_refused_with_the_difference(tmp_path: Path) -> None:
    opened(tmp_path).close()
    with pytest.raises(UserError, match=r"seed: 0 → 7.*choose another place"):
        RunDirectory(tmp_path, override(CONFIG, "seed", 7))


def test_a_directory_of_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(UserError, match="holds other files"):
        RunDirectory(tmp_path, CONFIG)


def test_budgets_only_grow(tmp_path: Path) -> None:
    run = opened(tmp_path)
    with pytest.raises(UserError, match="unfinished run of 1,000 env steps"):
        RunDirectory(tmp_path, override(CONFIG, "env_steps", 10))
    run.mark_done({"env_steps": 1000})
    run.close()
    assert RunDirectory(tmp_path, CONFIG).is_finished()
    assert RunDirectory(tmp_path, override(CONFIG, "env_steps", 10)).is_finished()
    longer = RunDirectory(tmp_path, override(CONFIG, "env_steps", 2000))
    assert not longer.is_finished()
    longer.open()
    assert not longer.is_done
    assert read_config(tmp_path).env_steps == 2000
    longer.close()


def test_auto_precision_means_what_it_meant(tmp_path: Path) -> None:
    config = configure("fake-continuous")
    opened(tmp_path, override(config, "agent.precision", "bf16")).close()
    assert RunDirectory(tmp_path, config).config.agent.precision == "bf16"  # type: ignore[union-attr]
    with pytest.raises(UserError, match=r"agent\.precision: 'bf16' → 'fp32'"):
        RunDirectory(tmp_path, override(config, "agent.precision", "fp32"))


def test_a_damaged_config_is_named(tmp_path: Path) -> None:
    opened(tmp_path).close()
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match=r"config\.json cannot be read"):
        RunDirectory(tmp_path, CONFIG)


def test_another_machine_is_said(tmp_path: Path) -> None:
    run = opened(tmp_path)
    assert run.record_machine({"threads": 2, "command": "a"}) is None
    assert run.record_machine({"threads": 2, "command": "b"}) is None
    assert "threads: 2 → 1" in (run.record_machine({"threads": 1, "command": "b"}) or "")


def test_scores_come_back_as_they_were(tmp_path: Path) -> None:
    mean, std = summarise([1.0, 2.0, 6.0])
    assert (mean, round(std, 6)) == (3.0, 2.160247)
    row = Score(
        "", "pong", "random", 3, "final", 400, 100, 3, mean, std, 1.5, "cpu", json.dumps({"torch": "2"}), "x, y"
    )
    write_scores([row], tmp_path / "scores.csv")
    assert read_scores(tmp_path / "scores.csv") == [row]
    (tmp_path / "other").mkdir()
    write_scores([dataclasses.replace(row, seed=4)], tmp_path / "other" / "scores.csv")
    assert [s.seed for s in gather([tmp_path])] == [4, 3]
    (tmp_path / "other" / "scores.csv").write_text("nonsense\n1\n")
    with pytest.raises(UserError, match="is not a table of scores"):
        gather([tmp_path])
