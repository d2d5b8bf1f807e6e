"""Batches over REST: at planning the topics and their heads, then one partition in each task.

Spark pickles a reader before it asks for the partitions, so a reader holds only the options and the pushed filters; the
results of planning are in the partitions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from topics.client import Client, NotFound, TopicsError
from topics.spark import plan, pushdown
from topics.spark.errors import daemon_error
from topics.spark.options import ReadOptions
from topics.spark.partition_fetch import FetchRequest, fetch
from topics.spark.plan import KnownTopic, RestPart
from topics.spark.pushdown import EVERYTHING, QueryScope


def rest_reader(options: ReadOptions) -> TopicsReader:
    """The reader of batches for these options."""
    return PushingReader(options) if options.pushdown else TopicsReader(options)


def known_topics(client: Client, options: ReadOptions, scope: QueryScope = EVERYTHING) -> dict[str, KnownTopic]:
    """The facts about those topics of the options that exist. Raises a TopicsError."""
    known: dict[str, KnownTopic] = {}
    if options.prefix is not None:
        for found in client.list_all(prefix=options.prefix):
            if scope.reads(found.topic):
                known[found.topic] = KnownTopic(found.epoch, found.head_seq, found.earliest_seq)
        return known
    for topic in options.topics or ():
        if scope.reads(topic):
            try:
                state = client.state(topic, touch=False)
            except NotFound:
                continue
            known[topic] = KnownTopic(state.epoch, state.head_seq, state.earliest_seq)
    return known


def require_all(known: dict[str, KnownTopic], options: ReadOptions, scope: QueryScope = EVERYTHING) -> None:
    """Raise LookupError for a topic that is named in the options and does not exist."""
    for topic in options.topics or ():
        if scope.reads(topic) and topic not in known:
            raise LookupError(f"there is no topic {topic!r} at {options.daemon.url if options.daemon else ''}")


class TopicsReader(DataSourceReader):
    """Without push-down: Spark refuses a reader that has `pushFilters` unless its own setting is on."""

    def __init__(self, options: ReadOptions) -> None:
        assert options.daemon is not None
        self._daemon = options.daemon
        self._options = options
        self._scope = QueryScope.of(options)

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the partitions, up to the heads as of now. Raises LookupError, DaemonError and MissingSecret."""
        options, scope = self._options, self._scope
        if scope.is_nothing:
            return []
        with self._daemon.connect() as client:
            try:
                known = known_topics(client, options, scope)
            except TopicsError as error:
                raise daemon_error(error, "planning") from None
        require_all(known, options, scope)
        parts = plan.batch(known, options.starting, options.ending, options.records_per_partition)
        return [cut for part in parts if (cut := _cut(part, scope)) is not None]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition (`topics.spark.partition_fetch`)."""
        if not isinstance(partition, RestPart):
            return iter(())  # Spark's own, where there is none
        return fetch(self._daemon, partition, FetchRequest.by(self._options, self._scope))


class PushingReader(TopicsReader):
    """With push-down (`pushdown=true`)."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take the filters that an export can apply, and return those that Spark has to apply."""
        self._scope, rest = pushdown.narrowed(self._scope, filters, exact=not self._options.tombstones)
        return rest


def _cut(part: RestPart, scope: QueryScope) -> RestPart | None:
    after, last = max(part.after, scope.first - 1), min(part.last, scope.last)
    return dataclasses.replace(part, after=after, last=last) if after < last else None
