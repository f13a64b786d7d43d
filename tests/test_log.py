"""Logs: whole lines only, cut back on resume, never torn."""

import csv
import math
from pathlib import Path

import pytest

from curl_rl.errors import UserError
from curl_rl.log import JsonLines, RunLog, duration, read_rows, replace_file, write_csv


def test_a_damaged_line_never_breaks_a_reader(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\n\xff\xfe{"a":\n[1]\n{"a": 2}\n{"a": 3')
    assert read_rows(path) == [{"a": 1}, {"a": 2}]
    assert read_rows(tmp_path / "missing.jsonl") == []


def test_cutting_back_to_a_checkpoint(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "rows.jsonl")
    lines.append({"a": 1})
    size = lines.size()
    lines.append({"a": 2})
    lines.cut_back(size)
    lines.append({"a": 3})
    assert read_rows(lines.path) == [{"a": 1}, {"a": 3}]


def test_values_that_json_cannot_hold_are_written_as_text(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "rows.jsonl")
    lines.append({"a": math.nan, "b": math.inf})
    assert read_rows(lines.path) == [{"a": "nan", "b": "inf"}]


def test_a_csv_has_all_columns_in_order_of_appearance(tmp_path: Path) -> None:
    write_csv([{"a": 1}, {"a": 2, "b": 3}], tmp_path / "rows.csv")
    with (tmp_path / "rows.csv").open() as file:
        assert list(csv.DictReader(file)) == [{"a": "1", "b": ""}, {"a": "2", "b": "3"}]


def test_replacing_a_file_that_cannot_be_written_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    replace_file(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(UserError, match="no space left on device; free some space"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_tensorboard_shows_the_tags(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = RunLog(tmp_path)
    log.begin(0, {})
    log.write(10, {"losses/qf_loss": 1.5})
    log.write_evaluation(20, {"mean": 3.0, "std": 2.0, "returns": [1.0, 5.0]})
    log.flush()
    sizes = log.sizes()
    log.write(30, {"losses/qf_loss": 9.0})
    log.close()

    again = RunLog(tmp_path)
    again.begin(20, sizes)
    again.write(30, {"losses/qf_loss": 2.5})
    again.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("losses/qf_loss")] == [(10, 1.5), (30, 2.5)]
    assert [(e.step, e.value) for e in events.Scalars("eval/episodic_return")] == [(20, 3.0)]
    assert read_rows(tmp_path / "metrics.jsonl")[-1] == {"env_steps": 30, "losses/qf_loss": 2.5}


def test_durations_read_like_a_clock() -> None:
    assert [duration(s) for s in (5, 65, 3723)] == ["0:05", "1:05", "1:02:03"]
