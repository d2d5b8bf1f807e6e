"""Streams: offsets and rows of the reader by itself, and whole queries with checkpoints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from tests.conformance.client import Client, Daemon, fresh_name
from topics.spark.errors import DataLoss
from topics.spark.options import ReadOptions
from topics.spark.plan import Offsets
from topics.spark.stream_reader import TopicsStreamReader

pytestmark = pytest.mark.slow

ALL = ReadAllAvailable()


class Stream:
    """A reader as Spark drives it."""

    def __init__(self, daemon: Daemon, **options: str) -> None:
        self.reader = TopicsStreamReader(ReadOptions.parsed({"url": daemon.url} | options))

    def rows(self, start: Offsets, end: Offsets) -> list[dict[str, Any]]:
        parts = self.reader.partitions(start, end)
        return [row for part in parts for batch in self.reader.read(part) for row in batch.to_pylist()]

    def seqs(self, start: Offsets, end: Offsets) -> list[tuple[str, int]]:
        return [(row["topic"], row["seq"]) for row in self.rows(start, end)]


@pytest.fixture
def streams(daemon: Daemon) -> Iterator[Any]:
    opened: list[Stream] = []

    def make(**options: str) -> Stream:
        opened.append(Stream(daemon, **options))
        return opened[-1]

    yield make
    for stream in opened:
        stream.reader.stop()


def epoch(http: Client, topic: str) -> int:
    return int(http.state(topic)["epoch"])


def test_an_offset_says_the_last_seq_and_the_epoch(streams: Any, http: Client, topic: str) -> None:
    http.append(topic, *range(5))
    stream = streams(topic=topic)
    start = stream.reader.initialOffset()
    end = stream.reader.latestOffset(start, ALL)
    assert start == {topic: {"seq": 0, "epoch": epoch(http, topic)}}
    assert end == stream.reader.reportLatestOffset() == {topic: {"seq": 5, "epoch": epoch(http, topic)}}
    assert stream.reader.latestOffset(end, ALL) == end
    assert stream.seqs(start, end) == [(topic, seq) for seq in range(1, 6)]
    assert stream.reader.partitions(end, end) == []


def test_the_same_offsets_are_the_same_rows_whatever_comes_later(streams: Any, http: Client, topic: str) -> None:
    http.append(topic, *range(5))
    stream = streams(topic=topic)
    start = stream.reader.initialOffset()
    end = stream.reader.latestOffset(start, ALL)
    before = stream.rows(start, end)
    http.append(topic, *range(5))
    assert streams(topic=topic).rows(start, end) == before


def test_a_stream_may_begin_at_the_end_or_at_a_seq(streams: Any, http: Client, topic: str) -> None:
    http.append(topic, *range(5))
    latest, fourth = streams(topic=topic, startingSeq="latest"), streams(topic=topic, startingSeq="4")
    starts = [stream.reader.initialOffset() for stream in (latest, fourth)]
    http.append(topic, 5)
    end = latest.reader.latestOffset(starts[0], ALL)
    assert latest.seqs(starts[0], end) == [(topic, 6)]
    assert fourth.seqs(starts[1], end) == [(topic, 4), (topic, 5), (topic, 6)]


def test_a_limit_holds_over_all_topics_unless_everything_is_asked_for(streams: Any, http: Client) -> None:
    stem = fresh_name("fair")
    http.append(f"{stem}.a", *range(100))
    http.append(f"{stem}.b", *range(3))
    stream = streams(topicPrefix=f"{stem}.", maxRecordsPerTrigger="10")
    limit = stream.reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(10)
    start = stream.reader.initialOffset()
    end = stream.reader.latestOffset(start, limit)
    assert [offset["seq"] for offset in end.values()] == [7, 3]
    assert [offset["seq"] for offset in stream.reader.latestOffset(end, ALL).values()] == [100, 3]
    assert streams(topic=f"{stem}.a").reader.getDefaultReadLimit() == ALL


def test_a_query_that_is_to_end_does_not_follow_what_comes_meanwhile(streams: Any, http: Client) -> None:
    stem = fresh_name("now")
    http.append(f"{stem}.a", *range(10))
    stream = streams(topicPrefix=f"{stem}.")
    start = stream.reader.initialOffset()
    stream.reader.prepareForTriggerAvailableNow()
    http.append(f"{stem}.a", *range(10))
    http.append(f"{stem}.b", 1)
    end = stream.reader.latestOffset(start, ReadMaxRows(6))
    end = stream.reader.latestOffset(end, ReadMaxRows(6))
    assert end == {f"{stem}.a": {"seq": 10, "epoch": epoch(http, f"{stem}.a")}}
    assert stream.reader.latestOffset(end, ReadMaxRows(6)) == end


def test_what_does_not_match_the_filter_moves_the_offset(streams: Any, http: Client, topic: str) -> None:
    http.append(topic, records=[{"data": n, "tag": f"t{n % 4}"} for n in range(1, 21)])
    stream = streams(topic=topic, filter='tag = "t0"', maxRecordsPerTrigger="7", columns="topic,seq")
    offset, found = stream.reader.initialOffset(), []
    for expected in (7, 14, 20, 20):
        end = stream.reader.latestOffset(offset, stream.reader.getDefaultReadLimit())
        assert end[topic]["seq"] == expected
        found.append([seq for _, seq in stream.seqs(offset, end)])
        offset = end
    assert found == [[4], [8, 12], [16, 20], []]


def test_new_topics_join_from_what_there_is_of_them(streams: Any, http: Client) -> None:
    stem = fresh_name("join")
    http.append(f"{stem}.a", 1)
    stream = streams(topicPrefix=f"{stem}.", startingSeq="latest")
    start = stream.reader.initialOffset()
    http.put_topic(f"{stem}.b", cap_records=2)
    http.append(f"{stem}.b", *range(5))
    end = stream.reader.latestOffset(start, ALL)
    assert stream.seqs(start, end) == [(f"{stem}.b", 4), (f"{stem}.b", 5)]
    http.append(f"{stem}.b", 6)
    with pytest.raises(DataLoss, match=r"the records 4 to 4 of topic .* are gone \(reason: cap\)"):
        stream.seqs(start, end)


def test_a_topic_that_was_made_again_is_loss_and_not_silence(streams: Any, http: Client, topic: str) -> None:
    http.append(topic, *range(5))
    strict, told = streams(topic=topic), streams(topic=topic, tombstones="true")
    start = strict.reader.latestOffset(strict.reader.initialOffset(), ALL)
    http.delete_topic(topic)
    assert strict.reader.latestOffset(start, ALL) == start, "somebody has deleted it, and that is no loss"
    http.append(topic, "new", "new")
    end = strict.reader.latestOffset(start, ALL)
    with pytest.raises(DataLoss, match=rf"the records 6 to its end of topic '{topic}' are gone \(reason: recreated\)"):
        strict.reader.partitions(start, end)
    gap, *records = told.rows(start, end)
    assert (gap["topic"], gap["gap_from"], gap["gap_to"], gap["reason"]) == (topic, 6, None, "recreated")
    assert [(row["seq"], row["data"]) for row in records] == [(1, '"new"'), (2, '"new"')]


def test_a_topic_that_was_named_has_to_be_there_when_the_query_begins(streams: Any) -> None:
    with pytest.raises(LookupError, match="there is no topic 'nowhere'"):
        streams(topic="nowhere").reader.initialOffset()


# --- queries ---------------------------------------------------------------------------------------------------------


class Query:
    """A streaming query to Parquet, run as often as one likes: each run goes on where the last one ended."""

    def __init__(self, spark: SparkSession, daemon: Daemon, root: Path, **options: Any) -> None:
        self._spark = spark
        self._daemon = daemon
        self.rows_at = str(root / "rows")
        self.checkpoint = root / "checkpoint"
        self.options = options

    def run(self) -> None:
        """Read what there is. Raises StreamingQueryException."""
        stream = self._spark.readStream.format("topics").options(url=self._daemon.url, **self.options).load()
        query = (
            stream.writeStream.format("parquet")
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start(self.rows_at)
        )
        try:
            assert query.awaitTermination(120)
        finally:
            query.stop()

    def rows(self) -> list[tuple[str, int]]:
        return sorted((row.topic, row.seq) for row in self._spark.read.parquet(self.rows_at).collect())

    def offsets(self) -> list[Any]:
        """Of each batch, in order, out of the checkpoint."""
        files = sorted((file for file in (self.checkpoint / "offsets").iterdir() if file.name.isdigit()), key=by_number)
        return [json.loads(file.read_text().splitlines()[-1]) for file in files]


def by_number(file: Path) -> int:
    return int(file.name)


def test_a_query_goes_on_where_it_ended_and_takes_new_topics_in(
    spark: SparkSession, daemon: Daemon, http: Client, tmp_path: Path
) -> None:
    stem = fresh_name("query")
    http.append(f"{stem}.a", *range(25))
    query = Query(spark, daemon, tmp_path, topicPrefix=f"{stem}.", maxRecordsPerTrigger=10, columns="topic,seq")
    query.run()
    assert query.rows() == [(f"{stem}.a", seq) for seq in range(1, 26)]
    assert [offsets[f"{stem}.a"]["seq"] for offsets in query.offsets()] == [10, 20, 25]
    http.append(f"{stem}.a", 26)
    http.append(f"{stem}.b", 1, 2)
    query.run()
    assert query.rows() == [(f"{stem}.a", seq) for seq in range(1, 27)] + [(f"{stem}.b", 1), (f"{stem}.b", 2)]
    assert query.offsets()[-1] == {
        name: {"seq": seq, "epoch": epoch(http, name)} for name, seq in ((f"{stem}.a", 26), (f"{stem}.b", 2))
    }


def test_a_query_with_a_filter_gets_each_match_once_over_restarts(
    spark: SparkSession, daemon: Daemon, http: Client, topic: str, tmp_path: Path
) -> None:
    http.append(topic, *range(1, 26))
    query = Query(spark, daemon, tmp_path, topic=topic, filter="data > 23")
    query.run()
    assert query.rows() == [(topic, 24), (topic, 25)]
    http.append(topic, 26, 1, 27)
    query.run()
    assert query.rows() == [(topic, 24), (topic, 25), (topic, 26), (topic, 28)]
    assert [offsets[topic]["seq"] for offsets in query.offsets()] == [25, 28]


def test_a_query_that_retention_has_overtaken_fails_and_may_be_told_to_go_on(
    spark: SparkSession, daemon: Daemon, http: Client, topic: str, tmp_path: Path
) -> None:
    http.put_topic(topic, cap_records=2)
    http.append(topic, *range(5))
    query = Query(spark, daemon, tmp_path, topic=topic, startingSeq=1)
    with pytest.raises(StreamingQueryException) as failure:
        query.run()
    assert f"the records 1 to 3 of topic '{topic}' are gone (reason: cap)" in str(failure.value)
    query.options["failOnDataLoss"] = "false"
    query.run()
    assert [seq for _, seq in query.rows()] == [4, 5]
