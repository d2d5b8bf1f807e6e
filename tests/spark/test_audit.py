"""The job `audit`: sound directories pass, damage is named with its segment, what may not be looked at is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.spark.test_segments import tree
from topics.spark.__main__ import run
from topics.spark.session import JobOptions
from topics.storage.files.fs import OsFs


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of everything in a data directory and its cold one."""
    for path, content in tree().items():
        target = tmp_path / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    return tmp_path


@pytest.fixture
def shared(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job runs in the session of all tests."""

    @contextmanager
    def session(_self: JobOptions, job: str) -> Iterator[SparkSession]:
        assert job == "audit"
        yield spark

    monkeypatch.setattr(JobOptions, "session", session)


def files(copy: Path, pattern: str) -> list[Path]:
    found = sorted(copy.glob(f"*/topics/*/{pattern}"))
    assert found
    return found


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0x81
    path.write_bytes(content)


def audit(copy: Path, *more: object) -> int:
    return run(["audit", "--path", str(copy), *map(str, more)])


@pytest.mark.slow
@pytest.mark.usefixtures("shared")
def test_sound_directories_pass_and_every_segment_has_a_row(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = copy / "report.parquet"
    assert audit(copy, "--report", report) == 0
    rows = pq.read_table(report).to_pylist()
    assert sorted(row["file"] for row in rows) == sorted(map(str, files(copy, "*.data")))
    assert {row["status"] for row in rows} == {"sound"}
    assert not any(row["problems"] for row in rows)
    quick = [(row["first_seq"], row["last_seq"], row["live"]) for row in rows if row["topic"] == "quick"]
    assert quick[0][0] == 1
    assert quick[-1][1] == sum(live for _, _, live in quick) == 215
    assert f"{len(rows)} segments of 3 topics" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.usefixtures("shared")
def test_damage_is_named_with_file_and_segment(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = files(copy, "*.data")
    flip(data[0], 40)
    index = next(path for path in files(copy, "*.idx") if path.stem != data[0].stem)
    flip(index, 25)
    tags = next(path for path in files(copy, "*.tags") if path.stem not in (data[0].stem, index.stem))
    flip(tags, 30)
    gone = data[-1]
    gone.unlink()
    report = copy / "report.json"
    assert audit(copy, "--report", report) == 1
    rows: list[dict[str, Any]] = [json.loads(line) for line in report.read_text().splitlines()]
    bad = {row["file"]: "\n".join(row["problems"]) for row in rows if row["status"] == "damage"}
    assert f"{data[0]} at 32: " in bad[str(data[0])]
    assert f"{index} at 20: " in bad[str(index.with_suffix(".data"))]
    assert f"{tags}: the checksum" in bad[str(tags.with_suffix(".data"))]
    assert f"{gone}: is missing" in bad[str(gone)]
    assert len(bad) == 4
    out = capsys.readouterr().out
    assert all(f"damage: {path}" in out for path in (data[0], index, tags, gone))
    assert "4 segments damaged" in out


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert run(["audit", *map(str, arguments)]) == 2
    return capsys.readouterr().err


def test_what_is_no_data_directory_is_refused(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no data directory" in refused(capsys, "--path", copy / "data" / "topics")
    assert "is a cold directory" in refused(capsys, "--path", copy / "cold")
    assert "does not exist" in refused(capsys, "--path", copy / "nowhere")
    assert "--report" in refused(capsys, "--path", copy, "--report", copy / "nowhere" / "out.json")


def test_a_directory_in_use_is_refused_unless_that_is_meant(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = OsFs().lock(str(copy / "data" / "LOCK"), "pid 1234")
    try:
        problem = refused(capsys, "--path", copy)
    finally:
        lock.release()
    assert "is in use" in problem
    assert "--in-use" in problem
