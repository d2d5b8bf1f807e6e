"""The reader of files (`path`) shows what the reader over REST shows, as of a checkpoint: topics with any history,
while a daemon works on the directory, after it was killed, and from a copy or the cold directory alone."""

from __future__ import annotations

import random
import re
import shutil
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNull,
    LessThan,
    StringStartsWith,
)

from tests.conformance.client import Client, body_of, until
from tests.spark.conftest import StartDaemon
from tests.storage.data_file import rows_of
from tests.storage.made import CONFIG, made
from topics.spark.batch_reader import rest_reader
from topics.spark.errors import DataLoss, FilesError
from topics.spark.options import OptionError, ReadOptions
from topics.spark.schema import arrow_schema
from topics.spark.segments import FileTask, PushingSegmentReader, segment_reader, without
from topics.spark.source import TopicsDataSource
from topics.storage.files.fs import OsFs
from topics.storage.offline.stored_topics import LostRange, StoredSegment, TopicDirectory
from topics.storage.segments.packed_format import PACK_MAGIC
from topics.storage.segments.segment_format import DELETED_FLAG, LIVE_FLAG, DataScan

SEEDS = (1, 2)
SMALL = {
    "segment_max_events": 40,
    "checkpoint_ms": 3_600_000,
    "reclaim_ms": 50,
    "relocate_ms": 50,
    "hot_retain_segments": 2,
    "cache_bytes": 20_000,
}
"""Segments are rewritten, merged, dropped and relocated all the time; a checkpoint is taken when the test asks."""

TOPICS = ("plain", "capped", "jobs", "source", "copies", "picky")
EVERYTHING = {"topics": ",".join(TOPICS), "startingSeq": "1", "tombstones": "true"}
Row = dict[str, Any]


# ----------------------------------------------------------------- reading


def rows_from(reader: DataSourceReader, columns: Sequence[str]) -> list[Row]:
    """What a reader returns, without Spark, in the order of its partitions."""
    rows: list[Row] = []
    for part in reader.partitions():
        for batch in reader.read(part):
            assert isinstance(batch, pa.RecordBatch)
            assert batch.schema == arrow_schema(columns)
            rows += batch.to_pylist()
    return rows


def joined_of(options: dict[str, str]) -> list[Row]:
    """The same for options; gaps that touch are one."""
    parsed = ReadOptions.parsed(options)
    reader = segment_reader(parsed) if parsed.path is not None else rest_reader(parsed)
    rows = rows_from(reader, parsed.columns)
    return joined(rows) if parsed.tombstones else rows


def joined(rows: Sequence[Row]) -> list[Row]:
    """A gap is announced in as many pieces as there are partitions in it."""
    found: list[Row] = []
    for row in rows:
        before = found[-1] if found else {}
        same = (before.get("topic"), before.get("reason")) == (row["topic"], row["reason"])
        if row["gap_from"] is not None and same and before["gap_to"] + 1 == row["gap_from"]:
            found[-1] = {**before, "gap_to": row["gap_to"]}
        else:
            found.append(row)
    return found


def over_rest(client: Client, **options: str) -> list[Row]:
    return joined_of({"url": client.daemon.url, "recordsPerPartition": "1000000", **EVERYTHING, **options})


def of_files(path: Path, **options: str) -> list[Row]:
    return joined_of({"path": str(path), **EVERYTHING, **options})


def by_topic(rows: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["topic"], []).append(row)
    return found


# ----------------------------------------------------------------- a directory that is there


@cache
def tree() -> dict[str, bytes]:
    """What an engine has left that was stopped cleanly: all that there is, is in segments, hot and cold."""
    return {path: content for path, content in made(7).fs.after_process_kill().tree().items() if content is not None}


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """That directory, as a copy: `data` and `cold`."""
    for path, content in tree().items():
        if "/wal/" not in path:
            target = tmp_path / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
    return tmp_path


def test_packed_segments_are_read_as_plain_ones(left: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    config = replace(CONFIG, segment_compression="zstd")
    kinds = set()
    for path, content in made(7, config=config).fs.after_process_kill().tree().items():
        if content is not None and "/wal/" not in path:
            target = packed / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            kinds |= {(path.split("/")[1], "del")} if path.endswith(".del") else set()
            kinds |= {(path.split("/")[1], "packed")} if content.startswith(PACK_MAGIC) else set()
    assert {("data", "packed"), ("cold", "packed"), ("cold", "del")} <= kinds

    def shown(directory: Path) -> list[Row]:
        rows = of_files(
            directory, topics="tagged,capped,quick", columns="topic,seq,tag,node,data,gap_from,gap_to,reason"
        )
        return [{name: value for name, value in row.items() if name != "ts"} for row in rows]

    assert shown(packed) == shown(left)


def segment_of(left: Path, topic: str, number: int) -> StoredSegment:
    found = TopicDirectory.found(OsFs(), str(left)).topics(OsFs(), topic.__eq__)[topic]
    return found.segments[number]


def one_with_deleted(left: Path) -> tuple[StoredSegment, DataScan]:
    """A segment of `tagged` with deleted records in its file, and what there is in it."""
    for number in range(8):
        segment = segment_of(left, "tagged", number)
        assert segment.path is not None
        content = Path(segment.path).read_bytes()
        rows = rows_of(content)
        if DELETED_FLAG in rows.delete_flag:
            return segment, rows
    raise AssertionError("there is none")


def put(segment: StoredSegment, at: int, value: int) -> None:
    assert segment.path is not None
    with Path(segment.path).open("r+b") as file:
        file.seek(at)
        file.write(bytes([value]))


def seqs_of(rows: Sequence[Row]) -> list[int]:
    return [row["seq"] for row in rows if row["seq"] is not None]


def gaps_of(rows: Sequence[Row]) -> list[tuple[int, int, str]]:
    return [(row["gap_from"], row["gap_to"], row["reason"]) for row in rows if row["gap_from"] is not None]


def ranges_of(directory: Path, **options: str) -> list[list[tuple[str, int, int]]]:
    """Topic, after and last of each segment, task by task."""
    tasks = segment_reader(ReadOptions.parsed({"path": str(directory), **options})).partitions()
    assert all(isinstance(task, FileTask) and all(part.segment is not None for part in task.parts) for task in tasks)
    return [
        [(part.topic, part.after, part.last) for part in task.parts] for task in tasks if isinstance(task, FileTask)
    ]


def test_a_task_has_segments_of_one_topic_that_follow_each_other(left: Path) -> None:
    one_each = ranges_of(left, topics="tagged,quick", startingSeq="30", recordsPerPartition="1")
    assert {len(task) for task in one_each} == {1}
    ranges = [part for task in one_each for part in task]
    assert ranges[0] == ("tagged", 29, 40)
    assert all(a[2] <= b[1] for a, b in pairwise(ranges) if a[0] == b[0])
    assert [topic for topic, _ in groupby(ranges, key=itemgetter(0))] == ["tagged", "quick"]

    several = ranges_of(left, topics="tagged,quick", startingSeq="30", recordsPerPartition="50")
    assert [part for task in several for part in task] == ranges
    assert 2 < len(several) < len(one_each)
    assert all(len({topic for topic, _, _ in task}) == 1 for task in several)
    assert all(sum(last - after for _, after, last in task) <= 50 for task in several if len(task) > 1)


def test_seqs_are_inclusive_and_an_end_beyond_the_head_is_the_head(left: Path) -> None:
    assert seqs_of(of_files(left, topics="quick", startingSeq="40", endingSeq="43")) == [40, 41, 42, 43]
    assert seqs_of(of_files(left, topics="quick", startingSeq="214", endingSeq="9999")) == [214, 215]
    assert seqs_of(of_files(left, topics="quick", startingSeq="216")) == []


def test_what_retention_took_before_is_loss_only_if_it_is_asked_for(left: Path) -> None:
    plain = {"path": str(left), "topic": "capped"}
    assert seqs_of(joined_of(plain)) == list(range(151, 301))
    with pytest.raises(DataLoss, match=r"records 100 to 150 of topic 'capped'.*cap"):
        joined_of(plain | {"startingSeq": "100"})
    assert seqs_of(joined_of(plain | {"startingSeq": "100", "failOnDataLoss": "false"})) == list(range(151, 301))
    assert gaps_of(of_files(left, topics="capped", startingSeq="100", endingSeq="120")) == [(100, 120, "cap")]


def test_records_of_an_ephemeral_topic_are_in_no_file(left: Path) -> None:
    rows = of_files(left, topics="fleeting")
    assert (seqs_of(rows), gaps_of(rows)) == ([], [(1, 30, "lost")])


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        (GreaterThan(("seq",), 100), lambda row: row["seq"] > 100),
        (EqualTo(("tag",), "blue"), lambda row: row["tag"] == "blue"),
        (StringStartsWith(("tag",), "bl"), lambda row: (row["tag"] or "").startswith("bl")),
        (IsNull(("tag",)), lambda row: row["tag"] is None),
        (In(("tag",), ("blue", "a")), lambda row: row["tag"] in ("blue", "a")),
        (LessThan(("ts",), datetime.fromtimestamp(0, UTC)), lambda _: False),
        (GreaterThanOrEqual(("ts",), datetime.fromtimestamp(0, UTC)), lambda _: True),
        (EqualTo(("topic",), "quick"), lambda row: row["topic"] == "quick"),
    ],
)
def test_filters_are_applied_to_files(left: Path, condition: Filter, holds: Callable[[Row], bool]) -> None:
    options = ReadOptions.parsed({"path": str(left), "topics": "tagged,quick", "pushdown": "true"})
    reader = segment_reader(options)
    assert isinstance(reader, PushingSegmentReader)
    assert list(reader.pushFilters([condition])) == []
    expected = [row for row in joined_of({"path": str(left), "topics": "tagged,quick"}) if holds(row)]
    assert rows_from(reader, options.columns) == expected


def test_the_option_filters_what_files_have_and_no_gap(left: Path) -> None:
    plain = {"path": str(left), "topics": "tagged,quick,capped", "startingSeq": "100", "tombstones": "true"}
    every = joined_of(plain)
    some = {**plain, "filter": 'tag = "blue" or data ~ "xxxxx*" and not tag ~ "*"'}
    expected = [
        row
        for row in every
        if row["seq"] is None or row["tag"] == "blue" or (row["tag"] is None and row["data"].startswith('"xxxxx'))
    ]
    assert (100, 150, "cap") in gaps_of(expected)
    assert 0 < len(seqs_of(expected)) < len(seqs_of(every))
    assert joined_of(some) == expected
    narrow = joined_of({**some, "columns": "topic,seq,gap_from,gap_to,reason"})
    assert seqs_of(narrow) == seqs_of(expected)
    assert gaps_of(joined_of({**plain, "filter": 'node = "nobody"'})) == gaps_of(every)


def test_a_bad_frame_is_loss_that_names_file_and_offset(left: Path) -> None:
    before = of_files(left, topics="quick")
    segment = segment_of(left, "quick", 1)
    put(segment, 35, 0xFF)
    lost = segment.first
    with pytest.raises(DataLoss, match=f"records {lost} to {lost} .*corrupt") as raised:
        joined_of({"path": str(left), "topic": "quick"})
    assert re.search(rf"{re.escape(str(segment.path))}.* 32 to \d+", str(raised.value.__cause__))
    rows = of_files(left, topics="quick")
    assert gaps_of(rows) == [(lost, lost, "corrupt")]
    assert [row for row in rows if row["seq"]] == [row for row in before if row["seq"] != lost]
    assert [row["seq"] or row["gap_from"] for row in rows] == [row["seq"] for row in before]


def test_a_bad_frame_of_a_deleted_record_is_nobodys_loss(left: Path) -> None:
    before = of_files(left, topics="tagged")
    segment, rows = one_with_deleted(left)
    put(segment, rows.offset[rows.delete_flag.index(DELETED_FLAG)] + 35, 0xFF)
    assert of_files(left, topics="tagged") == before


def test_a_missing_file_is_loss_of_all_that_was_live_in_it(left: Path) -> None:
    segment = segment_of(left, "quick", 0)
    assert segment.path is not None
    Path(segment.path).unlink()
    assert gaps_of(of_files(left, topics="quick")) == [(1, segment.last, "corrupt")]


def test_a_cold_file_that_is_missing_is_an_error(left: Path) -> None:
    segment = next(one for i in range(20) if (one := segment_of(left, "tagged", i)).tier == "cold")
    assert segment.path is not None
    Path(segment.path).unlink()
    with pytest.raises(FilesError, match=re.escape(segment.path)):
        of_files(left, topics="tagged")


def test_a_record_that_was_flagged_and_is_not_any_more_is_an_error(left: Path) -> None:
    """Deleted records never come back, with any options."""
    segment, rows = one_with_deleted(left)
    i = next(i for i, flag in enumerate(rows.delete_flag) if flag == DELETED_FLAG and rows.seq[i] >= segment.start)
    put(segment, rows.offset[i] + rows.frame_len[i] - 1, LIVE_FLAG)
    with pytest.raises(FilesError, match=r"come back"):
        of_files(left, topics="tagged")


def test_cold_segments_without_their_directory_are_refused_if_they_are_needed(left: Path) -> None:
    newest = of_files(left, topics="tagged")[-1]["seq"]
    (left / "cold").rename(left / "elsewhere")
    with pytest.raises(FilesError, match="coldPath"):
        of_files(left, topics="tagged")
    assert seqs_of(of_files(left, topics="tagged", startingSeq=str(newest))) == [newest]


def test_a_cold_directory_alone_has_what_has_gone_there(left: Path) -> None:
    whole = of_files(left, topics="tagged", startingSeq="earliest")
    found = of_files(left / "cold", topics="tagged", startingSeq="earliest")
    assert found == [row for row in whole if row["seq"] <= 160]
    with pytest.raises(LookupError, match="'quick'"):  # none of it has gone there
        joined_of({"path": str(left / "cold"), "topic": "quick"})


def test_a_topic_that_is_not_there_is_named(left: Path) -> None:
    with pytest.raises(LookupError, match=r"no topic 'nothing' in .* as of its last checkpoint"):
        joined_of({"path": str(left), "topics": "quick,nothing"})
    assert joined_of({"path": str(left), "topicPrefix": "nothing"}) == []
    with pytest.raises(LookupError, match="'gone'"):  # a deleted one
        joined_of({"path": str(left), "topic": "gone"})


def test_files_are_read_by_batches_only(left: Path) -> None:
    source = TopicsDataSource({"path": str(left), "topic": "quick"})
    with pytest.raises(OptionError, match="path"):
        source.streamReader(source.schema())


def test_gaps_that_are_known_already_are_not_announced_again() -> None:
    losses = [LostRange(1, 10, "cap"), LostRange(20, 30, "lost")]
    assert without(losses, []) == losses
    assert without(losses, [LostRange(5, 22, "cap")]) == [LostRange(1, 4, "cap"), LostRange(23, 30, "lost")]
    assert without(losses, [LostRange(1, 10, "cap"), LostRange(25, 26, "lost")]) == [
        LostRange(20, 24, "lost"),
        LostRange(27, 30, "lost"),
    ]


# ----------------------------------------------------------------- a life


class Life:
    """Topics that everything happens to that can, by a seed."""

    def __init__(self, client: Client, seed: int) -> None:
        self.client = client
        self.rng = random.Random(seed)
        client.put_topic("plain", durability="disk")
        client.put_topic("capped", durability="disk", cap_records=150)
        client.put_topic("jobs", type="queue", durability="disk")
        client.put_topic("source", durability="fsync")
        client.put_topic("copies", durability="disk")
        client.put_topic("picky", durability="disk", cap_bytes=200_000, discard="reject")
        self.routers = {"all": "copies", "some": "picky"}
        for name, dest in self.routers.items():
            body_of(client.put(f"/v0/routers/{name}", json={"source": "source", "dest": dest}), 200, 201)

    def go_on(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def step(self) -> None:
        rng, client = self.rng, self.client
        topic = rng.choice(["plain", "capped", "jobs", "source"])
        kind = rng.random()
        if kind < 0.65:
            client.append(topic, records=[self.record(topic) for _ in range(rng.randint(1, 60))])
        elif kind < 0.75:
            state = client.state(topic)
            client.delete_records(topic, before_seq=rng.randint(1, state["earliest_seq"] + 30))
        elif kind < 0.9:
            client.delete_records(topic, match=rng.choice(["t1", "t2", "u*"]))
        elif topic == "jobs":
            claimed = body_of(client.post("/v0/topics/jobs/claim", json={"node": "w", "max": 30}))["claimed"]
            done = [job["$seq"] for job in claimed if rng.random() < 0.8]
            if done:
                body_of(client.post("/v0/topics/jobs/ack", json={"node": "w", "seqs": done}))

    def record(self, topic: str) -> dict[str, Any]:
        rng = self.rng
        record: dict[str, Any] = {"data": {"n": rng.randint(0, 10**9), "text": "ü" * rng.choice([0, 3, 30])}}
        if topic == "source" and rng.random() < 0.01:
            record["data"]["text"] = "x" * 200_000  # never fits into `picky`, which has a hole instead
        if rng.random() < 0.6:
            record["tag"] = rng.choice(["t1", "t2", "t3", "u:1", "u:2"])
        if rng.random() < 0.4:
            record["node"] = rng.choice(["a", "b", "c"])
        if rng.random() < 0.3:
            record["meta"] = {"k": rng.choice("xyz"), "ü": "1"} if rng.random() < 0.9 else {}
        return record

    def settle(self) -> None:
        """Until the routers have come to the head of their source."""
        until(lambda: all(body_of(self.client.get(f"/v0/routers/{name}"))["lag"] == 0 for name in self.routers))

    def checkpoint(self) -> None:
        """All that there is goes into segments."""
        self.settle()
        body_of(self.client.post("/v0/admin/checkpoint"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_files_show_what_the_daemon_shows(tmp_path: Path, start_daemon: StartDaemon, seed: int) -> None:
    """Through a life, while a daemon works on the files; then from a copy of the directories of a daemon that was
    killed, and behind its back."""
    daemon = start_daemon(cold_dir=tmp_path / "cold", **SMALL)
    path, cold = daemon.root / "data", str(tmp_path / "cold")
    with Client(daemon) as client:
        life = Life(client, seed)
        for _ in range(3):
            life.go_on(25)
            life.checkpoint()
            expected = over_rest(client)
            assert_same(of_files(path, coldPath=cold), expected)
        seen_by_others = {
            "node": "a",
            "columns": "topic,node,seq,reason,gap_from,gap_to",
            "startingSeq": "100",
            "endingSeq": "300",
        }
        assert_same(of_files(path, coldPath=cold, **seen_by_others), over_rest(client, **seen_by_others))
        daemon.end(signal.SIGKILL)
    assert_same(of_files(path, coldPath=cold), expected)
    copy = tmp_path / "copy"
    shutil.copytree(path, copy / "data")
    shutil.copytree(cold, copy / "cold")
    assert_same(of_files(copy), expected)


def assert_same(found: Sequence[Row], expected: Sequence[Row]) -> None:
    """Topic by topic, so that what differs is shown."""
    assert by_topic(found).keys() == by_topic(expected).keys()
    for topic, rows in by_topic(expected).items():
        assert by_topic(found)[topic] == rows, topic


@pytest.mark.slow
def test_a_read_is_right_whatever_the_daemon_does_meanwhile(tmp_path: Path, start_daemon: StartDaemon) -> None:
    busy = SMALL | {"checkpoint_ms": 50, "reclaim_ms": 10, "relocate_ms": 10, "segment_max_events": 20}
    daemon = start_daemon(cold_dir=tmp_path / "cold", **busy)
    path, cold = daemon.root / "data", str(tmp_path / "cold")
    reads: list[list[Row]] = []
    with Client(daemon) as client:
        life = Life(client, 3)
        with ThreadPoolExecutor(1) as pool:
            work = pool.submit(life.go_on, 100)
            until(lambda: client.state("copies")["head_seq"] > 0)
            life.checkpoint()
            while not work.done():
                reads.append(of_files(path, coldPath=cold))
            work.result()
        life.checkpoint()
        last = of_files(path, coldPath=cold)
        assert_same(last, over_rest(client))
    still_there = {(row["topic"], row["seq"]): row for row in last}
    for rows in reads:
        found = {(row["topic"], row["seq"]): row for row in rows if row["seq"] is not None}
        heads = {topic: max(row["seq"] or row["gap_to"] for row in these) for topic, these in by_topic(rows).items()}
        assert all(found[key] == row for key, row in still_there.items() if key in found)
        assert [key for key in still_there if key[1] and key[1] <= heads.get(key[0], 0) and key not in found] == []
        for topic, these in by_topic(rows).items():
            places = [row["seq"] or row["gap_from"] for row in these]
            assert places == sorted(set(places)), topic


@pytest.mark.slow
def test_spark_reads_files_and_pushes_filters(spark: SparkSession, tmp_path: Path, start_daemon: StartDaemon) -> None:
    daemon = start_daemon(**SMALL | {"segment_max_events": 50, "reclaim_ms": 3_600_000})
    with Client(daemon) as client:
        for _ in range(4):
            records = [{"data": {"n": i}, "tag": f"t:{i % 3}", "meta": {"i": str(i)}} for i in range(60)]
            client.append("orders", records=records)
        client.delete_records("orders", match="t:1")
        body_of(client.post("/v0/admin/checkpoint"))
        expected = over_rest(client, topics="orders")
        client.append("orders", "in the log only")
    assert of_files(daemon.root / "data", topics="orders") == expected
    spark.dataSource.register(TopicsDataSource)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        files = spark.read.format("topics").options(topic="orders", pushdown="true").load(str(daemon.root / "data"))
        rows = sorted(files.where("seq between 60 and 130 and tag = 't:2'").collect(), key=lambda row: row.seq)
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert [(row.topic, row.seq, row.tag, row.data, row.meta) for row in rows] == [
        (row["topic"], row["seq"], row["tag"], row["data"], dict(row["meta"]))
        for row in expected
        if 60 <= row["seq"] <= 130 and row["tag"] == "t:2"
    ]
    assert len(rows) == 24


def test_what_a_shortened_file_does_not_have_is_loss(left: Path) -> None:
    before = of_files(left, topics="quick")
    segment = segment_of(left, "quick", 1)
    assert segment.path is not None
    content = Path(segment.path).read_bytes()
    rows = rows_of(content)
    Path(segment.path).write_bytes(content[: rows.offset[-3]])
    first, last = rows.seq[-3], segment.last
    with pytest.raises(DataLoss, match=f"records {first} to {last} .*corrupt"):
        joined_of({"path": str(left), "topic": "quick"})
    shown = of_files(left, topics="quick")
    assert gaps_of(shown) == [(first, last, "corrupt")]
    assert [row for row in shown if row["seq"]] == [row for row in before if not first <= (row["seq"] or 0) <= last]
