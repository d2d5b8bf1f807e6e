"""Writers of `format("topics")`: the rows of a batch, or of an epoch of a stream, are published once, all or none.

Each attempt of a task uploads its rows to stages of its own, one for each topic, under names that no other attempt ever
uses. Spark says which attempts have won. The driver publishes their stages in the order of partitions, under a key that
is the same for every repeat of the epoch. So the uploads of other attempts, drivers and runs of the query are never
visible, and the daemon drops them when they expire. Three processes take part:

- `__init__` runs in a process for planning; Spark pickles the writer for the tasks, and for the commit of a batch.
- `write` runs in the task. Only there Spark tells the id of the streaming query, so the message carries it.
- `commit` and `abort` run in a process beside the driver; for a stream, with a writer that knows only the options.

`topics.spark.records` turns rows into records. `docs/design/pipeline.md` 3 gives the reasons.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from topics.client import BadRequest, Client, NotFound, TopicsError, bulk, calls
from topics.spark.options import DaemonAccess, WriteOptions
from topics.spark.records import RecordLines, RowError, check_columns, lines

REPEAT_FOR_S: Final = 600.0
"""How long a piece of an upload, or a commit, is repeated while the daemon cannot be reached, starts, or asks to wait,
in seconds. Then the task fails with the daemon's message. Stages and their keys live longer."""

DISCARD_WITHIN_S: Final = 5.0
"""How long to wait for the daemon's answer when stages are deleted, in seconds. Stages that stay expire anyway."""

PIECE_BYTES: Final = 1 << 20
"""The size of a piece of an upload, in bytes of lines; the last one may be smaller. A piece is repeated as a whole."""

BUFFER_BYTES: Final = 16 << 20
"""The bound of a task's lines that are not sent, over all topics, in bytes. Beyond it the largest topic is sent."""

MAX_TOPICS: Final = 1000
"""How many topics one task may write, each with a stage. A task with more fails."""

_QUERY: Final = "sql.streaming.queryId"
_EPOCH: Final = "streaming.sql.batchId"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}")


class WriteFailed(RuntimeError):
    """A write has failed. The message is for the user of Spark."""


@dataclass(frozen=True, slots=True)
class UploadedStage:
    """The upload of a task for one topic."""

    topic: str
    name: str
    count: int


@dataclass(frozen=True)
class TaskUpload(WriterCommitMessage):
    """The uploads of an attempt of a task, which the driver publishes or discards."""

    writer: str
    epoch: int
    """Of the streaming query that it is part of; 0 if there is none."""
    partition: int
    stages: tuple[UploadedStage, ...]


class TopicsWriter(DataSourceArrowWriter):
    """Of a batch: the same batch is one with the same `jobId`, and each is another without."""

    def __init__(self, options: WriteOptions, overwrite: bool) -> None:
        self._options = options
        self._overwrite = overwrite
        self._writer = short_name(options.job_id or uuid.uuid4().hex)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskUpload:
        """Raises WriteFailed, TopicsError."""
        return upload(self._options, self._writer, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Raises WriteFailed, TopicsError."""
        done = _uploads(messages)
        # Under `foreachBatch` a job of one name is many batches.
        epoch = done[0].epoch if done else 0
        publish(self._options, f"{self._writer}/{epoch}", done, overwrite=self._overwrite)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        discard(self._options.daemon, _uploads(messages))


class TopicsStreamWriter(DataSourceStreamArrowWriter):
    """Of a streaming query, whose id stays the same as long as its checkpoint does."""

    def __init__(self, options: WriteOptions, overwrite: bool) -> None:
        self._options = options
        self._overwrite = overwrite

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskUpload:
        """Raises WriteFailed, TopicsError."""
        query = _property(_QUERY)
        if query is None:
            raise WriteFailed(
                f"Spark does not tell the id of the query (no local property {_QUERY}), without which nothing can be "
                "written exactly once; use foreachBatch with a batch write and the option `jobId`"
            )
        return upload(self._options, short_name(query), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Raises WriteFailed, TopicsError."""
        done = _uploads(messages)
        key = f"{done[0].writer}/{batchId}" if done else ""
        publish(self._options, key, done, overwrite=self._overwrite)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        discard(self._options.daemon, _uploads(messages))


def batch_writer(options: WriteOptions, schema: StructType, overwrite: bool) -> TopicsWriter:
    """Raises ColumnError for columns that records do not have."""
    check_columns(to_arrow_schema(schema, timezone="UTC"), options.topic)
    return TopicsWriter(options, overwrite)


def stream_writer(options: WriteOptions, schema: StructType, overwrite: bool) -> TopicsStreamWriter:
    """Raises ColumnError for columns that records do not have."""
    check_columns(to_arrow_schema(schema, timezone="UTC"), options.topic)
    return TopicsStreamWriter(options, overwrite)


def short_name(writer: str) -> str:
    """The name of a writer as a part of stage names and keys: itself, or a hash if it has other characters."""
    return writer if _NAME.fullmatch(writer) else hashlib.sha256(writer.encode()).hexdigest()[:32]


# --- in the task -----------------------------------------------------------------------------------------------------


def upload(options: WriteOptions, writer: str, batches: Iterable[pa.RecordBatch]) -> TaskUpload:
    """Upload the rows of a partition in pieces, one after the other, so that memory is bounded. After a failure the
    stages are deleted, if the daemon can be reached. Raises WriteFailed, TopicsError."""
    context = TaskContext.get()
    assert context is not None
    partition, epoch = context.partitionId(), int(_property(_EPOCH) or 0)
    name = f"spark.{writer}.{epoch}.{partition}.{context.attemptNumber()}.{uuid.uuid4().hex}"
    with options.daemon.connect(repeat_for=REPEAT_FOR_S) as client:
        uploading = _TaskUploads(client, name)
        try:
            before = 0
            for batch in batches:
                for some in lines(batch, before, options.topic):
                    uploading.add(some)
                before += batch.num_rows
            uploading.finish()
        except BaseException as error:
            _delete(options.daemon, uploading.stages())
            if isinstance(error, RowError):
                raise WriteFailed(f"row {error.row} of partition {partition}: {error.problem}") from None
            raise
        return TaskUpload(writer, epoch, partition, tuple(uploading.stages()))


class _PendingLines:
    """The lines of one topic that are not sent, and the number of records that its stage holds."""

    def __init__(self) -> None:
        self.sent = 0
        self.pieces = 0
        self.size = 0
        self._lines: list[RecordLines] = []

    def add(self, some: RecordLines) -> None:
        self._lines.append(some)
        self.size += len(some.body)

    def take(self) -> list[RecordLines]:
        taken, self._lines, self.size = self._lines, [], 0
        return taken


class _TaskUploads:
    """The uploads of one attempt of a task."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self._name = name
        self._topics: dict[str, _PendingLines] = {}
        self._size = 0

    def add(self, some: RecordLines) -> None:
        if some.topic not in self._topics and len(self._topics) == MAX_TOPICS:
            raise WriteFailed(f"more than {MAX_TOPICS} topics in one partition; repartition by the column topic")
        waiting = self._topics.setdefault(some.topic, _PendingLines())
        waiting.add(some)
        self._size += len(some.body)
        if waiting.size >= PIECE_BYTES:
            self._send(some.topic, waiting)
        elif self._size > BUFFER_BYTES:
            self._send(*max(self._topics.items(), key=lambda item: item[1].size))

    def finish(self) -> None:
        for topic, waiting in self._topics.items():
            if waiting.size:
                self._send(topic, waiting)

    def stages(self) -> list[UploadedStage]:
        """The stages that may exist. Records that were sent without an answer are not counted."""
        return [
            UploadedStage(topic, self._name, waiting.sent) for topic, waiting in self._topics.items() if waiting.pieces
        ]

    def _send(self, topic: str, waiting: _PendingLines) -> None:
        self._size -= waiting.size
        piece = waiting.take()
        waiting.pieces += 1
        body = b"".join(some.body for some in piece)
        try:
            count = self._client.run(bulk.staged(topic, self._name, body, str(waiting.pieces))).count
        except BadRequest as error:
            line = error.detail.get("line")
            rows = [row for some in piece for row in some.rows]
            if isinstance(line, int) and 1 <= line <= len(rows):
                raise RowError(rows[line - 1], f"topic {topic}: {error}") from None
            raise
        waiting.sent += sum(len(some.rows) for some in piece)
        if count != waiting.sent:
            raise WriteFailed(
                f"topic {topic}: the stage {self._name} holds {count} records instead of {waiting.sent}: it expired or "
                "was lost with the daemon in the middle of the upload"
            )


# --- beside the driver -----------------------------------------------------------------------------------------------


def publish(options: WriteOptions, key: str, done: Sequence[TaskUpload], *, overwrite: bool) -> None:
    """Publish the uploads of tasks, topic by topic, each once under the key. With `overwrite` the records that a topic
    held before are deleted after that; a repeat does the same. Raises WriteFailed, TopicsError."""
    topics: dict[str, list[UploadedStage]] = {}
    for stage in (stage for one in done for stage in one.stages):
        topics.setdefault(stage.topic, []).append(stage)
    with options.daemon.connect(repeat_for=REPEAT_FOR_S) as client:
        for topic, stages in sorted(topics.items()):
            first_seq = _commit(client, options.daemon, key, topic, stages)
            if overwrite:
                _delete_before(client, topic, first_seq)
        if overwrite and options.topic is not None and not topics:
            _delete_all(client, options.topic)


def _commit(client: Client, daemon: DaemonAccess, key: str, topic: str, stages: Sequence[UploadedStage]) -> int:
    """The first seq of the records that are published now, or were by an earlier commit with the same key."""
    try:
        answer = client.commit(topic, [stage.name for stage in stages], key)
    except NotFound as error:
        raise WriteFailed(
            f"topic {topic}: what was uploaded for {key} is not there any more: it expired before the job was done "
            "(TOPICS_STAGE_TTL_MS), was lost when the daemon's machine crashed, or went with the topic. Nothing of it "
            f"was published in this topic; run the job again, a stream from its checkpoint. The daemon says: {error}"
        ) from None
    if answer.deduped:
        _delete(daemon, stages)
    elif answer.count != (expected := sum(stage.count for stage in stages)):
        raise WriteFailed(f"topic {topic}: {answer.count} records were published for {key}, but {expected} uploaded")
    return answer.first_seq


def _delete_before(client: Client, topic: str, seq: int) -> None:
    client.run(replace(calls.delete_records(topic, before_seq=seq), repeatable=True))


def _delete_all(client: Client, topic: str) -> None:
    try:
        head = client.state(topic, touch=False).head_seq
    except NotFound:
        return
    _delete_before(client, topic, head + 1)


def discard(daemon: DaemonAccess, done: Sequence[TaskUpload]) -> None:
    """Delete the uploads of tasks, as far as the daemon can be reached now."""
    _delete(daemon, [stage for one in done for stage in one.stages])


def _delete(daemon: DaemonAccess, stages: Sequence[UploadedStage]) -> None:
    if not stages:
        return
    try:
        with Client(daemon.url, daemon.secret.resolve(), timeout=DISCARD_WITHIN_S, retry=None) as client:
            for stage in stages:
                client.delete_stage(stage.topic, stage.name)
    except TopicsError:
        pass  # nobody sees them, and they expire


def _uploads(messages: Iterable[WriterCommitMessage | None]) -> list[TaskUpload]:
    """The messages in the order of partitions. Spark has no message for a task that failed."""
    return sorted((one for one in messages if isinstance(one, TaskUpload)), key=lambda one: one.partition)


def _property(name: str) -> str | None:
    context = TaskContext.get()
    assert context is not None
    return context.getLocalProperty(name)
