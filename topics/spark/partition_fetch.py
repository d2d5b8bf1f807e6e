"""One partition over REST: the export of a range of seqs as record batches of the schema, and its gaps.

Theory of operation. An export that breaks is asked for again after the last seq that has arrived, so each record comes
once; rows that do not fill a batch yet are kept. An export with a filter that has to look at every record may bring
nothing for long, and would begin anew after the last match, so it is asked for in steps (`FILTER_STEP`). A daemon
without pyarrow answers with lines, which are decoded a block at a time. If the topic is deleted or made again
meanwhile, records of the new instance are never delivered. The missing rest of the range is a gap; `failOnDataLoss`
decides whether a gap is an error, a warning or a row. Runs in the executors. Keeps one batch in memory, besides the
buffers of the connection.
"""

from __future__ import annotations

import io
import logging
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import httpx
import msgspec
import pyarrow as pa

from topics.client import Client, ConnectionFailed, NotFound, ProtocolError, Retry, Tombstone, TopicsError, bulk
from topics.client.calls import ClientCall
from topics.client.retry import Attempts
from topics.filters.record_filter import parse_filter
from topics.spark.errors import DataLoss, daemon_error
from topics.spark.options import MAX_SEQ, REPEAT_FOR_S, DaemonAccess, ReadOptions
from topics.spark.plan import DELETED, RECREATED, RestPart, SeqGap
from topics.spark.pushdown import QueryScope
from topics.spark.schema import arrow_schema

log = logging.getLogger(__name__)

ACCEPT: Final = f"{bulk.ARROW}, {bulk.LINES};q=0.5"
"""A daemon without pyarrow answers the same call with lines."""

BATCH_ROWS: Final = 10_000
BATCH_BYTES: Final = 8 << 20
"""A batch goes to Spark when it has so many rows, or is so large (bytes). Larger ones cost memory in three processes,
smaller ones cost time, as each batch passes from process to process."""

FILTER_STEP: Final = 20_000
"""Seqs of one export with a filter for which the daemon has to look at every record. It looks at 160,000 a second or
more, which all exports share: with 200 of them a step takes 25 s, less than `SILENCE_S`."""

BLOCK_BYTES: Final = 1 << 20
"""How many bytes of lines are decoded together, or one line if it is longer."""

MAX_LINE_BYTES: Final = 256 << 20
"""A bound for memory: longer than any line of a daemon."""


@dataclass(frozen=True)
class FetchRequest:
    """Which records are fetched, which columns of each, and how gaps are treated."""

    columns: tuple[str, ...]
    nodes: tuple[str, ...]
    fail_on_data_loss: bool
    tombstones: bool
    scope: QueryScope

    @classmethod
    def by(cls, options: ReadOptions, scope: QueryScope) -> FetchRequest:
        """Return the request of the options, within `scope`, which has their filter too (`QueryScope.of`)."""
        return cls(options.columns, options.nodes, options.fail_on_data_loss, options.tombstones, scope)


def fetch(daemon: DaemonAccess, part: RestPart, wanted: FetchRequest) -> Iterator[pa.RecordBatch]:
    """The rows of a partition, in the order of their seqs.

    Raises DataLoss for a gap with `failOnDataLoss`; DaemonError where the daemon refuses the call, cannot be reached,
    or sends nothing more for `REPEAT_FOR_S`; and MissingSecret."""
    with daemon.connect() as client:
        try:
            yield from _Fetch(part, wanted).run(client)
        except TopicsError as error:
            raise daemon_error(error, f"reading topic {part.topic!r}") from None


class _Fetch:
    """Reads one partition."""

    def __init__(self, part: RestPart, wanted: FetchRequest) -> None:
        self._part = part
        self._wanted = wanted
        self._rows = _Rows(part.topic, wanted.columns)
        self._position = part.after
        """The last seq that has arrived, was looked at, or is known to be missing."""
        self._step = _step_of(wanted.scope)
        self._asked_to = part.last
        """The last seq of the export that is being read."""
        self._finished = False
        self._rng = random.Random()

    def run(self, client: Client) -> Iterator[pa.RecordBatch]:
        if self._part.gap is not None:
            yield from self._missing(self._part.gap)
        retry = Retry(give_up_after=REPEAT_FOR_S)
        attempts = Attempts(retry, repeatable=True, now=time.monotonic(), rng=self._rng)
        while not self._finished and self._position < self._part.last:
            try:
                self._asked_to = min(self._part.last, self._position + self._step)
                with client.opened(self._call()) as answer:
                    for item in _items(answer):
                        yield from self._take(item)
                        if item is None or self._finished:
                            break
            except NotFound:
                yield from self._ended(DELETED)
            except TopicsError as error:
                time.sleep(attempts.after(error, time.monotonic(), position=self._position))
        yield from self._rows.flush()

    def _call(self) -> ClientCall[bytes]:
        wanted, columns = self._wanted, self._wanted.columns
        return bulk.export_stream(
            self._part.topic,
            self._position,
            to_seq=self._asked_to,
            epoch=self._part.epoch,
            from_ts=wanted.scope.from_ts,
            to_ts=wanted.scope.to_ts,
            filter=wanted.scope.filter,
            node=wanted.nodes,
            include_tags="tag" in columns,
            include_meta="meta" in columns,
            include_data="data" in columns,
            accept=ACCEPT,
        )

    def _take(self, item: pa.RecordBatch | Tombstone | None) -> Iterator[pa.RecordBatch]:
        if item is None:
            self._position = self._asked_to
        elif isinstance(item, pa.RecordBatch):
            if item.num_rows:
                self._position = item.column("seq")[-1].as_py()
                yield from self._rows.add(item)
        elif item.reason == RECREATED:
            yield from self._ended(RECREATED)
        else:
            self._position = min(item.gap_to, self._part.last)
            yield from self._missing(SeqGap(item.gap_from, self._position, item.reason))

    def _ended(self, reason: str) -> Iterator[pa.RecordBatch]:
        """The instance of the topic that is read does not exist any more: the rest of the range is a gap."""
        self._finished = True
        yield from self._missing(SeqGap(self._position + 1, self._part.last, reason))

    def _missing(self, gap: SeqGap) -> Iterator[pa.RecordBatch]:
        """A gap: raise DataLoss; or, after the records before it, log a warning and perhaps yield a row."""
        topic = self._part.topic
        if self._wanted.fail_on_data_loss:
            raise DataLoss(topic, gap.first, gap.last, gap.reason)
        log.warning("topic %s: the records %s to %s are gone (%s)", topic, gap.first, gap.last, gap.reason)
        if self._wanted.tombstones:
            yield from self._rows.flush()
            yield gap_batch(topic, gap, self._wanted.columns)


def _step_of(scope: QueryScope) -> int:
    """How many seqs an export is asked for at most."""
    by_index = scope.filter is None or parse_filter(scope.filter).tags is not None
    return MAX_SEQ if by_index else FILTER_STEP


class _Rows:
    """Gathers the daemon's batches into larger ones with the columns of the schema."""

    def __init__(self, topic: str, columns: Sequence[str]) -> None:
        self._topic = pa.scalar(topic, pa.string())
        self._schema = arrow_schema(columns)
        self._batches: list[pa.RecordBatch] = []
        self._count = self._size = 0

    def add(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Add a batch. Yields a gathered batch when it is large enough."""
        self._batches.append(batch)
        self._count += batch.num_rows
        self._size += batch.nbytes
        if self._count >= BATCH_ROWS or self._size >= BATCH_BYTES:
            yield from self.flush()

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows that are gathered, if there are any."""
        if not self._batches:
            return
        table = pa.Table.from_batches(self._batches)
        self._batches, self._count, self._size = [], 0, 0
        arrays = [self._column(table, field) for field in self._schema]
        yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _column(self, table: pa.Table, field: pa.Field) -> pa.Array:
        if field.name == "topic":
            return pa.repeat(self._topic, table.num_rows)
        if field.name not in table.column_names:
            return pa.nulls(table.num_rows, field.type)
        column = table.column(field.name)
        found = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        return found if found.type == field.type else found.cast(field.type)


def gap_batch(topic: str, gap: SeqGap, columns: Sequence[str]) -> pa.RecordBatch:
    """The row of a gap with `tombstones=true`: its topic and the facts about the gap."""
    values = {"topic": topic, "gap_from": gap.first, "gap_to": gap.last, "reason": gap.reason}
    return pa.RecordBatch.from_pylist([{name: values.get(name) for name in columns}], schema=arrow_schema(columns))


# --- what the daemon sends -------------------------------------------------------------------------------------------


def _items(answer: httpx.Response) -> Iterator[pa.RecordBatch | Tombstone | None]:
    """Yield the content of an export: batches with the daemon's columns, tombstones, and None at its complete end.
    Raises ConnectionFailed if it is cut off, and ProtocolError for bytes that are no export."""
    kind = answer.headers.get("Content-Type", "").partition(";")[0].strip()
    if kind == bulk.ARROW:
        yield from _arrow_items(answer)
    elif kind == bulk.LINES:
        yield from _line_items(answer)
    else:
        raise ProtocolError(f"an export that is {kind or 'of no type'}")
    raise ConnectionFailed("the export was cut off", outcome_unknown=True)


def _arrow_items(answer: httpx.Response) -> Iterator[pa.RecordBatch | Tombstone | None]:
    body = _AnswerBody(answer)
    try:
        with pa.ipc.open_stream(pa.PythonFile(body, mode="r")) as reader:
            while True:
                try:
                    batch, said = reader.read_next_batch_with_custom_metadata()
                except StopIteration:
                    return
                yield from _said(batch, dict(said or {}))
    except (pa.ArrowInvalid, OSError, EOFError) as error:
        if body.ended:
            return  # cut off within a batch
        raise ProtocolError(f"an export that is no Arrow stream: {error}") from None


def _said(batch: pa.RecordBatch, said: Mapping[bytes, bytes]) -> Iterator[pa.RecordBatch | Tombstone | None]:
    if batch.num_rows:
        yield batch
    if b"$tombstone" in said:
        yield _tombstone.decode(said[b"$tombstone"])
    if b"$end" in said:
        yield None


class _AnswerBody(io.RawIOBase):
    """The body of an answer as a file that Arrow can read."""

    def __init__(self, answer: httpx.Response) -> None:
        self._pieces = answer.iter_raw()
        self._rest = memoryview(b"")
        self.ended = False

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        """Return exactly so many bytes; fewer at the end of the body."""
        found: list[Any] = []
        while size:
            if not self._rest and not self._more():
                break
            taken = self._rest if size < 0 else self._rest[:size]
            self._rest = self._rest[len(taken) :]
            size -= len(taken) if size > 0 else 0
            found.append(taken)
        return b"".join(found)

    def _more(self) -> bool:
        piece = next(self._pieces, None)
        self.ended = piece is None
        self._rest = memoryview(piece or b"")
        return piece is not None


class _ExportLine(msgspec.Struct, gc=False):
    """A line of an export: a record, a tombstone or the end."""

    seq: int = msgspec.field(default=0, name="$seq")
    ts: int = msgspec.field(default=0, name="$ts")
    node: str | None = msgspec.field(default=None, name="$node")
    tag: str | None = msgspec.field(default=None, name="$tag")
    meta: dict[str, str] | None = None
    data: msgspec.Raw = msgspec.Raw()
    """Empty, which is no JSON, if the data was not asked for."""
    tombstone: Tombstone | None = msgspec.field(default=None, name="$tombstone")
    end: dict[str, int] | None = msgspec.field(default=None, name="$end")


_tombstone: Final = msgspec.json.Decoder(Tombstone)
_lines: Final = msgspec.json.Decoder(_ExportLine)


def _line_items(answer: httpx.Response) -> Iterator[pa.RecordBatch | Tombstone | None]:
    for block in _blocks(answer.iter_raw()):
        try:
            lines = _lines.decode_lines(block)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ProtocolError(f"a line of an export that is not one: {error}") from None
        begin = 0
        for place in [place for place, line in enumerate(lines) if not line.seq]:
            if place > begin:
                yield _batch_of(lines[begin:place])
            begin = place + 1
            yield lines[place].tombstone
        if begin < len(lines):
            yield _batch_of(lines[begin:])


def _blocks(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield blocks of complete lines. The beginning of a line that was cut off is dropped."""
    waiting: list[bytes] = []
    size = 0
    for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size < BLOCK_BYTES:
            continue
        block, end, rest = b"".join(waiting).rpartition(b"\n")
        if end:
            yield block
        elif size > MAX_LINE_BYTES:
            raise ProtocolError(f"a line of more than {MAX_LINE_BYTES} bytes")
        waiting, size = [rest], len(rest)
    yield b"".join(waiting).rpartition(b"\n")[0]


def _batch_of(lines: Sequence[_ExportLine]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "seq": pa.array([line.seq for line in lines], pa.int64()),
            "ts": pa.array([line.ts * 1000 for line in lines], pa.int64()).cast(pa.timestamp("us", "UTC")),
            "node": pa.array([line.node for line in lines], pa.string()),
            "tag": pa.array([line.tag for line in lines], pa.string()),
            "meta": pa.array(
                [line.meta and list(line.meta.items()) for line in lines], pa.map_(pa.string(), pa.string())
            ),
            "data": pa.array([str(line.data, "utf-8") or None for line in lines], pa.string()),
        }
    )
