"""The reader of buckets (`path=s3://...`) shows what the reader of files and the reader over REST show, as of a base;
and says which object is missing or wrong."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
import trio
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceReader, EqualTo, Filter, GreaterThan, LessThan

from tests.bucket.conftest import moto
from tests.bucket.servers import SECRET, S3Server, fresh_prefix
from tests.bucket.small_bucket import SmallBucket
from tests.conformance.client import Client, body_of, until
from tests.simulation.model import Client as EngineClient
from tests.simulation.model import History, View, canonical, views_of
from tests.simulation.segment_lives import SMALL as SMALL_SEGMENTS
from tests.simulation.test_holds import changed, stored
from tests.simulation.world import Life as EngineLife
from tests.simulation.world import World
from tests.spark import test_segments as files
from tests.spark.buckets import BASE, BucketOfFiles, directory_of, put_all
from tests.spark.conftest import StartDaemon
from tests.spark.test_segments import assert_same, joined, over_rest, rows_from
from tests.storage.data_file import rows_of
from topics.bucket.object_names import BASES, FORMAT, PACKS, PINS, SEGMENTS
from topics.bucket.pin_format import decode_pin
from topics.spark import bucket_segments
from topics.spark.bucket_access import opened
from topics.spark.bucket_segments import BucketSegmentReader, BucketTask, PushingBucketSegmentReader, reader_of_path
from topics.spark.errors import DataLoss, FilesError
from topics.spark.options import OptionError, ReadOptions
from topics.spark.segments import PushingSegmentReader, segment_reader
from topics.spark.source import TopicsDataSource
from topics.storage.segments.segment_format import DELETED_FLAG, LIVE_FLAG

Row = dict[str, Any]

left = files.left
__all__ = ["left", "moto"]  # fixtures for these tests, too
NAMES = "tagged,quick,capped,fleeting"


def read(path: str, **options: str) -> list[Row]:
    """All rows of a bucket; gaps that touch are one."""
    parsed = ReadOptions.parsed({"path": path, "topics": NAMES, "startingSeq": "1", "tombstones": "true"} | options)
    rows = rows_from(reader_of_path(parsed), parsed.columns)
    return joined(rows) if parsed.tombstones else rows


def of_files(left: Path, **options: str) -> list[Row]:
    return files.of_files(left, topics=NAMES, **options)


OBJECTS_OF_LEFT: dict[str, bytes] = {}


def objects_of_left(left: Path) -> dict[str, bytes]:
    """A bucket with one base of that directory, which is the same in every test."""
    if not OBJECTS_OF_LEFT:
        made = BucketOfFiles()
        made.put_base(left / "data", left / "cold")
        OBJECTS_OF_LEFT.update(made.objects.objects)
    return OBJECTS_OF_LEFT


@pytest.fixture
def bucket(left: Path) -> str:
    """The bucket of a stopped engine, beside its directory."""
    return directory_of(objects_of_left(left), left / "bucket")


def objects_in(bucket: str, beginning: str) -> list[Path]:
    root = Path(bucket.removeprefix("file://"))
    return sorted(file for file in root.rglob("*") if str(file.relative_to(root)).startswith(beginning))


def data_of(bucket: str) -> list[Path]:
    return [file for file in objects_in(bucket, SEGMENTS) if file.suffix == ".data"]


# ----------------------------------------------------------------- the same rows


def test_a_base_shows_what_the_files_show(left: Path, bucket: str) -> None:
    rows = of_files(left)
    assert {row["reason"] for row in rows} >= {"cap", "lost", None}
    assert_same(read(bucket), rows)


@pytest.mark.parametrize(
    "options",
    [
        {"startingSeq": "40", "endingSeq": "163"},
        {"startingSeq": "earliest"},
        {"endingSeq": '{"quick": 50}'},
        {"columns": "seq,tag,gap_from,gap_to,reason,topic"},
        {"filter": 'tag = "blue" or data ~ "xxxxx*" and not tag ~ "*"'},
        {"node": "nobody"},
        {"recordsPerPartition": "1"},
        {"startingSeq": "300"},
    ],
)
def test_options_mean_what_they_mean_for_files(left: Path, bucket: str, options: dict[str, str]) -> None:
    rows = of_files(left, **options)
    assert rows
    assert_same(read(bucket, **options), rows)


@pytest.mark.parametrize(
    "condition",
    [
        GreaterThan(("seq",), 100),
        EqualTo(("tag",), "blue"),
        EqualTo(("topic",), "quick"),
        LessThan(("ts",), datetime.fromtimestamp(0, UTC)),
    ],
)
def test_filters_are_pushed_down_as_into_files(left: Path, bucket: str, condition: Filter) -> None:
    found = []
    for path, make in ((bucket, reader_of_path), (str(left), segment_reader)):
        options = ReadOptions.parsed({"path": path, "topics": NAMES, "pushdown": "true"})
        reader = make(options)
        assert isinstance(reader, PushingBucketSegmentReader if path == bucket else PushingSegmentReader)
        assert list(reader.pushFilters([condition])) == []
        found.append((rows_from(reader, options.columns), len(reader.partitions())))
    assert found[0] == found[1]


def test_without_push_down_a_reader_has_no_push_filters(bucket: str) -> None:
    """Spark refuses one that has, unless its own setting is on."""
    plain = reader_of_path(ReadOptions.parsed({"path": bucket, "topic": "quick"}))
    assert type(plain) is BucketSegmentReader
    assert type(plain).pushFilters is DataSourceReader.pushFilters


def test_segments_that_a_range_does_not_need_are_not_fetched(left: Path, bucket: str) -> None:
    expected = of_files(left, startingSeq="300")
    needed = {row["seq"] for row in expected if row["topic"] == "tagged" and row["seq"]}
    assert needed
    gone = [file for file in data_of(bucket) if int(file.name[:20]) < 250]
    assert gone
    for file in gone:
        file.unlink()
    assert_same(read(bucket, startingSeq="300"), expected)


def test_a_path_without_a_scheme_may_be_a_bucket_and_a_url_a_data_directory(left: Path, bucket: str) -> None:
    rows = of_files(left)
    assert_same(read(bucket.removeprefix("file://")), rows)
    assert_same(read(f"file://{left}/data", coldPath=str(left / "cold")), rows)
    for options, said in (
        ({"path": bucket, "coldPath": str(left / "cold")}, "coldPath: is of use with a data directory only"),
        ({"path": str(left), "asOf": "3"}, "asOf: is of use with a bucket only"),
        ({"path": f"file://{left}/data", "pinMs": "60000"}, "pinMs: is of use with a bucket only"),
    ):
        with pytest.raises(OptionError, match=said):
            reader_of_path(ReadOptions.parsed({"topic": "quick", **options}))


def test_loss_within_the_range_fails_the_query(bucket: str) -> None:
    with pytest.raises(DataLoss, match=r"records 100 to 150 of topic 'capped'.*cap"):
        read(bucket, topics="capped", startingSeq="100", tombstones="false")


def test_a_topic_that_is_not_in_the_base_is_named(bucket: str) -> None:
    with pytest.raises(LookupError, match=rf"no topic 'gone' in {bucket} as of bases/0*{BASE}"):
        read(bucket, topics="quick,gone")
    assert objects_in(bucket, PINS) == []
    some = ReadOptions.parsed({"path": bucket, "topicPrefix": "nothing"})
    assert reader_of_path(some).partitions() == []


def test_the_next_segment_arrives_while_one_is_worked_on(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: Queue[str] = Queue()
    real = bucket_segments.content_of

    def noted(reader: Any, objects: Any, base: str, pool: Any) -> bytes:
        begun.put(objects.name)
        return real(reader, objects, base, pool)

    monkeypatch.setattr(bucket_segments, "content_of", noted)
    reader = reader_of_path(ReadOptions.parsed({"path": bucket, "topic": "tagged", "recordsPerPartition": "1000"}))
    (task,) = reader.partitions()
    assert isinstance(task, BucketTask)
    names = [part.objects.name for part in task.parts if isinstance(part, bucket_segments.BucketPart) and part.objects]
    assert len(names) > 2
    batches = reader.read(task)
    next(batches)
    assert [begun.get(timeout=60) for _ in range(2)] == names[:2]
    assert begun.empty()  # two at most are in memory
    assert len(list(batches)) >= len(names) - 1
    assert begun.qsize() == len(names) - 2


# ----------------------------------------------------------------- bases of one life


def records_of(view: View) -> list[tuple[int, int, str]]:
    return [(one.seq, one.ts, one.body) for one in view.records.values()]


def bodies_of(rows: Sequence[Row]) -> list[tuple[int, int, str]]:
    """Rows as `View` has records."""
    found = []
    for row in rows:
        if row["seq"] is None:
            continue
        fields = {"$tag": row["tag"], "$node": row["node"], "meta": row["meta"] and dict(row["meta"])}
        body = {name: value for name, value in fields.items() if value is not None}
        found.append(
            (row["seq"], round(row["ts"].timestamp() * 1000), canonical(body | {"data": json.loads(row["data"])}))
        )
    return found


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("by_daemon", [False, True])
def test_each_base_of_a_life_is_read_as_the_owner_was(tmp_path: Path, by_daemon: bool, seed: int) -> None:
    """Bases of the tests, whose segments lack flags, and of the daemon's own code."""
    world = World(seed, config=replace(SMALL_SEGMENTS, wal_shards=1 + seed))
    made = SmallBucket()
    shown: dict[int, tuple[int, dict[str, View]]] = {}

    async def script(life: EngineLife) -> None:
        client = EngineClient(life.engine, History())
        made.begin(life)
        await stored(life, client)
        made.round(life)
        for turn in range(3):
            await changed(client, turn)
            if turn == 2:
                await client.delete_topic("memory")
            views = await views_of(life.engine)
            number = await (made.real_base(life) if by_daemon else made.base(life))
            shown[number] = (life.clock.now_ms(), views)
            await trio.sleep(1)
            await changed(client, turn + 10)
            made.round(life)
            await life.reclaimer.pass_over()

    assert world.live(script, end="kill")
    url = directory_of(made.objects.objects, tmp_path / "bucket")
    assert len(shown) == 3
    newest = max(shown)
    active = deleted = 0
    for number, (now_ms, views) in shown.items():
        moments = [str(number), str(now_ms), datetime.fromtimestamp(now_ms / 1000, UTC).isoformat()]
        for as_of in moments if number < newest else [None, *moments]:
            options = {"asOf": as_of} if as_of is not None else {}
            rows = files.by_topic(read_prefix(url, **options))
            for name, view in views.items():
                if view.config.durability == "ephemeral":
                    continue
                found = rows.get(name, [])
                assert bodies_of(found) == records_of(view), name
                gaps = [(row["gap_from"], row["gap_to"], row["reason"]) for row in found if row["seq"] is None]
                assert gaps == view.gaps, name
        tasks = reader_of_path(ReadOptions.parsed({"path": url, "topicPrefix": "", "asOf": str(number)})).partitions()
        parts = [part for task in tasks if isinstance(task, BucketTask) for part in task.parts]
        objects = [part.objects for part in parts if isinstance(part, bucket_segments.BucketPart)]
        active += sum(bool(one and one.pieces) for one in objects)
        deleted += sum(bool(one and one.deleted) for one in objects)
    assert active > 0
    assert deleted > 0
    assert "memory" not in files.by_topic(read_prefix(url))


def read_prefix(url: str, **options: str) -> list[Row]:
    every = {"path": url, "topicPrefix": "", "startingSeq": "1", "tombstones": "true"}
    parsed = ReadOptions.parsed(every | options)
    return joined(rows_from(reader_of_path(parsed), parsed.columns))


# ----------------------------------------------------------------- damage


def spoilt(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)


def shortened(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])


@pytest.mark.parametrize(
    ("beginning", "harm"),
    [
        *((beginning, harm) for beginning in (SEGMENTS, PACKS) for harm in (spoilt, shortened, Path.unlink)),
        (BASES, spoilt),
        (BASES, shortened),
        (FORMAT, Path.unlink),
    ],
)
def test_an_object_that_is_missing_or_wrong_is_an_error_that_names_it(
    bucket: str, beginning: str, harm: Callable[[Path], None]
) -> None:
    file = data_of(bucket)[0] if beginning == SEGMENTS else objects_in(bucket, beginning)[0]
    harm(file)
    with pytest.raises(FilesError, match=re.escape(f"{bucket}/{file.relative_to(bucket.removeprefix('file://'))}")):
        read(bucket, failOnDataLoss="false")


def test_a_flag_that_was_changed_in_the_bucket_is_an_error(bucket: str) -> None:
    """No frame's checksum is about its flag: the hash of the object is."""
    file = next(one for one in data_of(bucket) if one.stat().st_size > 400)
    content = bytearray(file.read_bytes())
    frames = rows_of(bytes(content))
    content[frames.offset[0] + frames.frame_len[0] - 1] ^= DELETED_FLAG ^ LIVE_FLAG
    file.write_bytes(content)
    with pytest.raises(FilesError, match=f"{file.name}: its hash does not match"):
        read(bucket)


def test_a_record_that_the_base_counts_and_no_frame_has_is_an_error(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hash holds, so the file was uploaded as it is."""
    file = next(one for one in data_of(bucket) if one.stat().st_size > 400)
    spoilt(file)
    real = bucket_segments.content_of

    def trusting(reader: Any, objects: Any, base: str, pool: Any) -> bytes:
        return file.read_bytes() if objects.name in str(file) else real(reader, objects, base, pool)

    monkeypatch.setattr(bucket_segments, "content_of", trusting)
    with pytest.raises(FilesError, match=rf"{file.name}: no valid frames at bytes \d+ to \d+"):
        read(bucket, failOnDataLoss="false")


def test_a_deletion_before_the_upload_and_after_the_checkpoint_counts(
    left: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The base says that the record is live, and its flag says that it is deleted."""
    file = next(one for one in data_of(bucket) if one.stat().st_size > 400)
    content = bytearray(file.read_bytes())
    frames = rows_of(bytes(content))
    place = next(i for i, flag in enumerate(frames.delete_flag) if flag == LIVE_FLAG)
    content[frames.offset[place] + frames.frame_len[place] - 1] = DELETED_FLAG
    real = bucket_segments.content_of

    def newer(reader: Any, objects: Any, base: str, pool: Any) -> bytes:
        return bytes(content) if objects.name in str(file) else real(reader, objects, base, pool)

    monkeypatch.setattr(bucket_segments, "content_of", newer)
    rows = of_files(left)
    found = read(bucket)
    (gone,) = [row for row in rows if row not in found]
    assert gone["seq"] == frames.seq[place]
    assert found == [row for row in rows if row != gone]


def test_deleted_records_do_not_come_back_without_their_bitmap(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_segments, "deleted_seqs", lambda _bitmap, _first: b"")
    with pytest.raises(FilesError, match="deleted ones have come back"):
        read(bucket)


def test_a_bucket_without_a_base_says_so(tmp_path: Path) -> None:
    (tmp_path / "FORMAT").write_text('{"bucket":1,"id":"x"}')
    with pytest.raises(FilesError, match="there is no base yet"):
        read(f"file://{tmp_path}")
    (tmp_path / "FORMAT").write_text('{"bucket":2,"id":"x"}')
    with pytest.raises(FilesError, match="FORMAT: it has version 2"):
        read(f"file://{tmp_path}")


def test_a_bitmap_has_the_lowest_bit_first() -> None:
    found = memoryview(bucket_segments.deleted_seqs(bytes([0b101, 0, 0x80]), 1000)).cast("Q").tolist()
    assert found == [1000, 1002, 1023]


# ----------------------------------------------------------------- Spark, a daemon and S3


@pytest.mark.slow
@pytest.mark.parametrize("seed", files.SEEDS)
def test_a_base_shows_what_the_daemon_showed(tmp_path: Path, start_daemon: StartDaemon, seed: int) -> None:
    """Through a life with everything that happens to topics; earlier bases stay as they are."""
    (tmp_path / "bucket").mkdir()
    url = f"file://{tmp_path / 'bucket'}"
    daemon = start_daemon(**files.SMALL, bucket=url, bucket_round_ms=50, bucket_base_ms=1000)
    expected: dict[int, list[Row]] = {}
    with Client(daemon) as client:
        life = files.Life(client, seed)
        body_of(client.post("/v0/topics/plain?stage=private", json={"records": [{"data": "staged"}]}), 200, 201)
        for _ in range(3):
            life.go_on(25)
            life.checkpoint()
            rows = over_rest(client)
            until(lambda rows=rows: has_base(url) and read(url, **files.EVERYTHING) == rows, within_s=60)  # type: ignore[misc]
            expected[opened(url, 0).choose(None)] = rows
    for number, rows in expected.items():
        assert_same(read(url, **files.EVERYTHING, asOf=str(number)), rows)
    assert_same(read_prefix(url), expected[max(expected)])  # without the stage


def has_base(url: str) -> bool:
    """A base with all topics."""
    try:
        read(url, **files.EVERYTHING)
    except (FilesError, LookupError):
        return False
    return True


def collected(spark: SparkSession, path: str, where: str, **options: str) -> list[Any]:
    spark.dataSource.register(TopicsDataSource)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = spark.read.format("topics").options(pushdown="true", **options).load(path)
        return sorted(frame.where(where).collect())
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


PAGE = Path(__file__).resolve().parents[2] / "docs" / "pipeline.md"


@pytest.mark.slow
def test_the_example_of_the_page_runs(spark: SparkSession, tmp_path: Path, left: Path, bucket: str) -> None:
    chapter = PAGE.read_text().partition("### A bucket instead of a daemon")[2].partition("\n### ")[0]
    (block,) = re.findall(r"^```python\n(.*?)^```$", chapter, re.MULTILINE | re.DOTALL)
    spark.dataSource.register(TopicsDataSource)
    places = {"s3://archive/main": bucket, '"orders"': '"quick"'}
    for there, here in places.items():
        assert there in block
        block = block.replace(there, here)
    scope: dict[str, Any] = {"spark": spark}
    exec(block, scope)
    assert scope["orders"].count() == 215


WHERE = "seq between 20 and 210 and tag = 'blue'"


@pytest.mark.slow
def test_spark_reads_a_bucket_and_pushes_filters(spark: SparkSession, left: Path, bucket: str) -> None:
    expected = collected(spark, str(left), WHERE, topic="tagged")
    assert len(expected) > 20
    found = collected(spark, bucket, WHERE, topic="tagged", recordsPerPartition="30", asOf=str(BASE))
    assert found == expected
    (pin,) = objects_in(bucket, PINS)
    assert decode_pin(pin.read_bytes()).base == BASE


def test_a_bucket_in_s3_is_read_from_one_process_to_the_next(
    left: Path, moto: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Spark does it: with pickles of the reader and of its tasks. `test_secrets` does it in Spark."""
    prefix = fresh_prefix()
    objects = moto.objects(prefix)
    put_all(objects_of_left(left), objects)
    url = f"s3://{moto.bucket}/{prefix}"
    for name, value in moto.variables().items():
        monkeypatch.setenv(name, value)
    options = ReadOptions.parsed({"path": url, "topics": NAMES, "startingSeq": "1", "tombstones": "true"})
    reader = pickle.loads(pickle.dumps(reader_of_path(options)))
    tasks = pickle.loads(pickle.dumps(reader.partitions()))
    assert SECRET.encode() not in pickle.dumps((options, reader, tasks))
    found = [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]
    assert_same(joined(found), of_files(left))
    (pin,) = objects.list(PINS)
    assert decode_pin(objects.get(pin.name, 4096).data).base == BASE
    file = next(one.name for one in objects.list(SEGMENTS) if one.name.endswith(".data"))
    objects.delete([file])
    with pytest.raises(FilesError, match=re.escape(f"{url}/{file}: it is missing")) as failure:
        read(url)
    assert SECRET not in str(failure.value)
    (end,) = {one.name for one in objects.list(PINS)} - {pin.name}
    assert decode_pin(objects.get(end, 4096).data).base == BASE  # nobody can tell that the query has failed
