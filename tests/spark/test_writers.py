"""What Spark writes is what is in the topic, and what cannot be written is said in words."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.conformance.client import Daemon, fresh_name
from tests.spark.between import Between, Exchange, Refused
from tests.spark.conftest import StartDaemon
from topics.client import Client, NewRecord, Record
from topics.spark import TopicsDataSource, writers
from topics.spark.options import DaemonAccess as Address
from topics.spark.options import WriteOptions
from topics.spark.records import RecordLines
from topics.spark.secrets import Secret
from topics.spark.writers import TaskUpload, TopicsStreamWriter, TopicsWriter, UploadedStage, WriteFailed

pytestmark = pytest.mark.slow

ROWS = "data string, tag string, node string, meta map<string,string>"


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Client]:
    with Client(daemon.url) as client:
        yield client


@pytest.fixture(autouse=True)
def registered(spark: SparkSession) -> None:
    spark.dataSource.register(TopicsDataSource)


def write(rows: DataFrame, daemon: Daemon, mode: str = "append", **options: str) -> None:
    rows.write.format("topics").options(url=daemon.url, **options).mode(mode).save()


def content(client: Client, topic: str) -> list[tuple[Any, ...]]:
    found = [item for item in client.read(topic) if isinstance(item, Record)]
    return [(bytes(item.raw), item.tag, item.node, item.meta or {}) for item in found]


def numbers(client: Client, topic: str) -> list[Any]:
    return [item.data for item in client.read(topic) if isinstance(item, Record)]


def test_a_copy_of_a_topic_has_the_same_records_in_the_same_order(
    spark: SparkSession, daemon: Daemon, client: Client, topic: str
) -> None:
    client.append(topic, [NewRecord({"n": n}, tag=f"t:{n % 3}", node="n", meta={"m": str(n)}) for n in range(50)])
    client.append(topic, [NewRecord([1, "é\n"]), NewRecord(None), "plain"])
    copy = fresh_name("copy")
    read = spark.read.format("topics").options(url=daemon.url, topic=topic, recordsPerPartition=20).load()
    write(read, daemon, topic=copy)
    assert content(client, copy) == content(client, topic)


def test_a_struct_becomes_json(spark: SparkSession, daemon: Daemon, client: Client, topic: str) -> None:
    rows = spark.sql(
        """select struct(id as n, id / 2 as half, array(id) as list, map('k', id) as map, null as nothing,
           timestamp '2024-01-31 12:00:00' as at, date '2024-01-31' as day, 1.50bd as price, X'00ff' as raw) as data
           from range(2)"""
    )
    write(rows, daemon, topic=topic)
    (first, second) = client.read(topic)
    assert isinstance(first, Record)
    assert isinstance(second, Record)
    assert bytes(second.raw).decode() == (
        '{"n":1,"half":0.5,"list":[1],"map":{"k":1},"nothing":null,"at":"2024-01-31T12:00:00.000000Z",'
        '"day":"2024-01-31","price":1.50,"raw":"AP8="}'
    )
    assert first.data["half"] == 0.0


def test_each_row_goes_where_its_topic_says_in_the_order_of_partitions(
    spark: SparkSession, daemon: Daemon, client: Client, topic: str
) -> None:
    rows = spark.range(0, 100, 1, 2).selectExpr("id as data", f"concat('{topic}.', id % 2) as topic")
    write(rows, daemon)
    assert numbers(client, f"{topic}.0") == list(range(0, 100, 2))
    assert numbers(client, f"{topic}.1") == list(range(1, 100, 2))


def test_overwriting_leaves_what_is_new_and_appending_what_was_there(
    spark: SparkSession, daemon: Daemon, client: Client, topic: str
) -> None:
    rows = spark.createDataFrame([("1",), ("2",)], "data string")
    write(rows, daemon, topic=topic)
    write(rows, daemon, topic=topic)
    assert numbers(client, topic) == [1, 2, 1, 2]
    write(rows, daemon, "overwrite", topic=topic)
    assert numbers(client, topic) == [1, 2]
    write(rows.limit(0), daemon, topic=topic)
    assert numbers(client, topic) == [1, 2]
    write(rows.limit(0), daemon, "overwrite", topic=topic)
    assert numbers(client, topic) == []


def test_a_column_that_records_do_not_have_is_named_before_anything_runs(
    spark: SparkSession, daemon: Daemon, client: Client, topic: str
) -> None:
    with pytest.raises(PySparkException, match="column 'colour': a record has data, tag, node, meta and topic"):
        write(spark.range(1).selectExpr("id as data", "id as colour"), daemon, topic=topic)
    with pytest.raises(PySparkException, match="column 'topic': is missing, and so is the option `topic`"):
        write(spark.range(1).selectExpr("id as data"), daemon)


def test_a_row_that_is_no_record_fails_the_write_by_its_place_and_nothing_is_written(
    spark: SparkSession, daemon: Daemon, client: Client, topic: str
) -> None:
    client.create(topic)
    rows = spark.range(0, 10, 1, 2).selectExpr(
        "if(id = 7, '{', '1') as data", "if(id = 2, repeat('x', 2000), 'x') as tag"
    )
    with pytest.raises(PySparkException, match=r"row 3 of partition [01]: (data is a string|topic .*tag)"):
        write(rows, daemon, topic=topic)
    with pytest.raises(PySparkException, match=r"row 3 of partition 0: topic .*tag"):
        write(rows.where("id < 5"), daemon, topic=topic)
    assert numbers(client, topic) == []


def test_what_does_not_fit_is_refused_whole_in_the_daemons_words(
    spark: SparkSession, daemon: Daemon, client: Client, topic: str
) -> None:
    client.create(topic, cap_records=12, discard="reject")
    client.append(topic, [-1, -2, -3])
    with pytest.raises(PySparkException, match="422 topic_full"):
        write(spark.range(10).selectExpr("id as data"), daemon, topic=topic)
    assert numbers(client, topic) == [-1, -2, -3]


def test_a_daemon_that_asks_to_wait_is_waited_for_and_a_lost_answer_adds_nothing_twice(
    spark: SparkSession, daemon: Daemon, client: Client, topic: str
) -> None:
    met: dict[str, int] = {}

    def refuse_twice(exchange: Exchange) -> None:
        met[exchange.path] = met.get(exchange.path, 0) + 1
        if met[exchange.path] == 1:
            raise Refused(503, "shutting_down", 20)
        if met[exchange.path] == 2:
            raise Refused(429, "rate_limited", 20)

    def lose_the_first(exchange: Exchange) -> None:
        if met[exchange.path] == 3:
            raise ConnectionError

    with Between(lambda: daemon.port) as between:
        between.asked, between.answered = refuse_twice, lose_the_first
        rows = spark.range(0, 4000, 1, 2).selectExpr("struct(id as n, repeat('x', 1000) as pad) as data")
        rows.write.format("topics").options(url=between.url, topic=topic).mode("append").save()
        first, second = between.commits()
    assert (first.said["deduped"], second.said["deduped"]) == (False, True)
    assert [record["n"] for record in numbers(client, topic)] == list(range(4000))


def test_stages_that_are_gone_fail_the_commit_and_publish_nothing(daemon: Daemon, client: Client, topic: str) -> None:
    client.create(topic)
    options = WriteOptions(Address(daemon.url), topic)
    lost = TaskUpload("writer", 0, 0, (UploadedStage(topic, "spark.lost", 3),))
    with pytest.raises(WriteFailed, match=f"topic {topic}: what was uploaded for .* is not there any more: it expired"):
        TopicsWriter(options, False).commit([lost])
    assert numbers(client, topic) == []


def test_aborting_deletes_what_was_uploaded(daemon: Daemon, client: Client, topic: str) -> None:
    client.stage(topic, "spark.some", [1, 2])
    some = TaskUpload("writer", 0, 0, (UploadedStage(topic, "spark.some", 2),))
    TopicsWriter(WriteOptions(Address(daemon.url), topic), False).abort([None, some])
    assert not client.delete_stage(topic, "spark.some").deleted
    assert numbers(client, topic) == []


def test_a_stage_that_is_lost_under_an_upload_fails_the_task(daemon: Daemon, client: Client, topic: str) -> None:
    piece = b'{"data":1}\n' * 100_000
    uploading = writers._TaskUploads(client, "spark.lost")
    uploading.add(RecordLines(topic, piece, range(100_000)))
    assert client.delete_stage(topic, "spark.lost").deleted
    with pytest.raises(
        WriteFailed, match=f"topic {topic}: the stage spark.lost holds 100000 records instead of 200000"
    ):
        uploading.add(RecordLines(topic, piece, range(100_000)))


def test_a_stream_whose_query_is_not_known_is_not_written(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "_property", lambda _: None)
    with pytest.raises(WriteFailed, match="Spark does not tell the id of the query"):
        TopicsStreamWriter(WriteOptions(Address(daemon.url), "t"), False).write(iter(()))


def test_a_task_that_meets_too_many_topics_says_so(daemon: Daemon) -> None:
    with Client(daemon.url) as client:
        uploading = writers._TaskUploads(client, "spark.many")
        for number in range(writers.MAX_TOPICS):
            uploading.add(RecordLines(f"many-{number}", b'{"data":1}\n', [number]))
        with pytest.raises(WriteFailed, match="more than 1000 topics in one partition; repartition"):
            uploading.add(RecordLines("one-more", b'{"data":1}\n', [0]))


def test_the_key_is_found_by_the_tasks_and_is_not_in_what_is_pickled(
    spark: SparkSession, start_daemon: StartDaemon, topic: str, tmp_path: Any
) -> None:
    guarded = start_daemon(api_keys="sesame-sesame:rw")
    file = tmp_path / "key"
    file.write_text("sesame-sesame\n")
    write(spark.range(3).selectExpr("id as data"), guarded, topic=topic, tokenFile=str(file))
    with Client(guarded.url, "sesame-sesame") as client:
        assert sorted(numbers(client, topic)) == [0, 1, 2]
    writer = TopicsWriter(WriteOptions(Address(guarded.url, Secret("file", str(file))), topic), False)
    assert b"sesame" not in pickle.dumps(writer)
