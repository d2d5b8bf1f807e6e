"""The job `audit`: sound directories pass, damage is named with its segment, what may not be looked at is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.simulation.world import Life, World
from tests.spark.test_segments import tree
from tests.storage.made import CONFIG
from topics.evidence.record_leaf import LEAF_BYTES
from topics.model import AppendRequest, Performance, RecordIn, TopicConfigPatch
from topics.spark.__main__ import run
from topics.spark.jobs.audit import _quiet, sentence
from topics.spark.session import JobOptions
from topics.storage.evidence.leaf_files import BLOCK_LEAVES, HEAD_BYTES, encode_leaf_file
from topics.storage.files.file_header import FILE_HEADER_BYTES, decode_file_header
from topics.storage.files.fs import OsFs
from topics.storage.offline.verify import Verification
from topics.storage.offline.verify_division import SegmentWork
from topics.storage.offline.verify_trees import LeafWork
from topics.storage.segments.segment_format import TRAILER_BYTES, digests


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


@cache
def _evident() -> dict[str, bytes]:
    """The files of a directory with a topic whose tree has two whole blocks, and with one that has no evidence."""
    world = World(3, config=replace(CONFIG, segment_max_events=5000, segment_max_bytes=1 << 20, wal_file_bytes=4 << 20))

    async def life(one: Life) -> None:
        configs: dict[str, dict[str, Any]] = {"proved": {"durability": "fsync", "evidence": True}, "plain": {}}
        for name, config in configs.items():
            await one.engine.topic_lifecycle.put(name, TopicConfigPatch(**config))
            records = [RecordIn(data=msgspec.Raw(b"%d" % i)) for i in range(1000)]
            for _ in range(33 if config else 6):
                await one.engine.appends.append(name, AppendRequest(records=records), Performance())
        await one.compactor.checkpoint()

    world.live(life)
    return {path: content for path, content in world.fs.tree().items() if content is not None}


def _rewrite_record(path: Path) -> None:
    """Change the first record of a `.data`, and its checksum."""
    content = bytearray(path.read_bytes())
    header = decode_file_header(bytes(content[:FILE_HEADER_BYTES]))
    assert header is not None
    at = FILE_HEADER_BYTES
    end = at + 4 + int.from_bytes(content[at : at + 4], "little") - TRAILER_BYTES
    content[end - 1] ^= 1
    (checksum,) = digests([bytes(content[at + 4 : end])], header.salt, [at])
    content[end : end + 8] = checksum.to_bytes(8, "little")
    path.write_bytes(content)


@pytest.mark.slow
@pytest.mark.usefixtures("shared")
def test_blocks_of_trees_and_sums_of_segments_are_verified_by_executors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the findings of `verify`, and without a block that the driver computes."""
    for path, content in _evident().items():
        target = tmp_path / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    root = str(tmp_path / "data")

    def found_by_verify() -> list[str]:
        with _quiet():
            return sorted(sentence(finding) for finding in Verification(OsFs(), root).findings())

    def found_by_audit() -> list[str]:
        with monkeypatch.context() as patch:
            patch.setattr(LeafWork, "verified", None)  # of this process: executors are others
            patch.setattr(SegmentWork, "findings", None)
            audit(tmp_path / "data")
        return sorted(line for line in capsys.readouterr().out.splitlines() if line.startswith(("damage:", "note:")))

    leaves = [path for path in files(tmp_path, "*.mrk") if path.stat().st_size > 500_000]
    assert len(leaves) == 2
    assert found_by_audit() == found_by_verify() == []
    block = leaves[1].read_bytes()[HEAD_BYTES : HEAD_BYTES + BLOCK_LEAVES * LEAF_BYTES]
    first = int(leaves[1].name.split("-")[1])
    leaves[1].write_bytes(encode_leaf_file(first, bytes(LEAF_BYTES) + block[LEAF_BYTES:]))
    proved, plain = sorted({path.parent for path in files(tmp_path, "*.data")})
    _rewrite_record(sorted(plain.glob("*.data"))[0])
    found = found_by_audit()
    assert found == found_by_verify()
    problems = "\n".join(found)
    assert "the leaves of topic 'proved' do not lead to the root" in problems
    assert f"{plain}/seg-{1:020d}.data: its SHA-256 is not the one that topic 'plain' has" in problems
    assert f"{proved}/" in problems
    assert f"seq {first}: the record was rewritten" in problems
    assert len(found) == 3


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
