"""Streams over REST: offsets, admission, and the partitions of each batch.

`topics.spark.plan` makes partitions out of two offsets, without the daemon. This module asks the daemon for the
heads, and reports loss that only the driver can notice. Spark makes one reader for the life of a query, in a process of
its own, and another one for the tasks, which it pickles first.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from topics.client import Client, TopicsError
from topics.spark import plan
from topics.spark.batch_reader import known_topics, require_all
from topics.spark.errors import DataLoss, daemon_error
from topics.spark.options import ReadOptions
from topics.spark.partition_fetch import FetchRequest, fetch
from topics.spark.plan import KnownTopic, Offsets, RestPart
from topics.spark.pushdown import QueryScope

log = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 0.05
"""The shortest time between two questions to the daemon, in seconds. Spark asks for the latest offset every few
milliseconds while there are no new records."""


class TopicsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream reader of Spark: offsets and partitions of micro-batches. All methods but `read` run in the driver,
    one at a time."""

    def __init__(self, options: ReadOptions) -> None:
        assert options.daemon is not None
        self._daemon = options.daemon
        self._options = options
        self._client: Client | None = None
        self._target: dict[str, KnownTopic] | None = None
        """The topics when an `availableNow` query began, which ends there; None for other queries."""
        self._looked = 0.0
        self._missed: set[str] = set()
        """Topics whose deletion was logged."""

    def initialOffset(self) -> Offsets:
        """The offset at which a new query begins. Raises LookupError for a topic that is named in the options and does
        not exist, DaemonError and MissingSecret."""
        known = self._known()
        require_all(known, self._options)
        return plan.initial(known, self._options.starting)

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        """The offset at which the next batch ends: the heads, or as many seqs further as `limit` allows."""
        known = self._known()
        self._tell_of_deleted(start, known)
        if self._target is not None:
            known = plan.capped(known, self._target)
        return plan.latest(start, known, limit.max_rows if isinstance(limit, ReadMaxRows) else None)

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.max_records_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def reportLatestOffset(self) -> Offsets | None:
        """The heads, which Spark shows in the progress of the query."""
        return {topic: {"seq": state.head, "epoch": state.epoch} for topic, state in self._known().items()}

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._known()

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """The partitions between two offsets. Raises DataLoss for a topic that was made again between them."""
        parts = plan.between(start, end, self._options.records_per_partition)
        for part in parts:
            if part.gap is not None and self._options.fail_on_data_loss:
                raise DataLoss(part.topic, part.gap.first, part.gap.last, part.gap.reason)
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition (`topics.spark.partition_fetch`)."""
        assert isinstance(partition, RestPart)
        return fetch(self._daemon, partition, FetchRequest.by(self._options, QueryScope.of(self._options)))

    def commit(self, end: Offsets) -> None:
        """Do nothing: records stay in their topics, and Spark's checkpoint holds the offset of the query."""

    def stop(self) -> None:
        if self._client is not None:
            self._client.close()

    def _known(self) -> dict[str, KnownTopic]:
        time.sleep(max(0.0, min(LOOK_EVERY_S, self._looked + LOOK_EVERY_S - time.monotonic())))
        if self._client is None:
            self._client = self._daemon.connect()
        try:
            return known_topics(self._client, self._options)
        except TopicsError as error:
            raise daemon_error(error, "looking for what is new") from None
        finally:
            self._looked = time.monotonic()

    def _tell_of_deleted(self, start: Offsets, known: dict[str, KnownTopic]) -> None:
        for topic in start:
            if topic not in known and topic not in self._missed:
                log.warning("topic %s is not there any more; if it is made again, that is loss", topic)
        self._missed = {topic for topic in start if topic not in known}
