"""Exports and uploads of any length, also to stages (`docs/spec/pipeline.md` section 1): their calls, and the state of
an export.

Pure: no I/O. The clients open the streams and hand in the bytes. `ExportDownload` decodes them, and knows where an
export continues after a broken connection. The functions `export`, `export_stream`, `ingest` and `stage` are the
methods of both clients, with their parameters and docstrings.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from topics.client import calls, results
from topics.client.calls import ClientCall
from topics.client.errors import ConnectionFailed, ProtocolError
from topics.client.results import Record, Tombstone
from topics.client.streams.lines import LineDecoder

LINES: Final = calls.LINES
ARROW: Final = "application/vnd.apache.arrow.stream"
"""The media types of exports. The daemon offers Arrow if pyarrow is installed."""

STEP: Final = 20_000
"""Seqs of one stream of an export that may find nothing for long. The daemon looks at 160,000 records a second or more,
which all exports share."""

PIECE_BYTES: Final = 256 << 10
"""An upload is sent in pieces of about this size, or of one record."""


class _TombstoneLine(msgspec.Struct):
    gap: Tombstone = msgspec.field(name="$tombstone")


class _End(msgspec.Struct):
    next_from_seq: int
    head_seq: int
    epoch: int


class _EndLine(msgspec.Struct):
    end: _End = msgspec.field(name="$end")


_record = msgspec.json.Decoder(Record)
_tombstone = msgspec.json.Decoder(_TombstoneLine)
_end = msgspec.json.Decoder(_EndLine)


def export_stream(
    topic: str,
    from_seq: int = 0,
    *,
    to_seq: int | None = None,
    from_ts: int | None = None,
    to_ts: int | None = None,
    match: str | None = None,
    node: str | Iterable[str] = (),
    include_tags: bool = True,
    include_meta: bool = True,
    include_data: bool = True,
    epoch: int | None = None,
    filter: calls.Filter | None = None,
    accept: str = LINES,
) -> ClientCall[bytes]:
    """The bytes of an export as the daemon sends them, for a `with` block, at whose end the stream is closed.

    `accept` is the format: NDJSON, or an Arrow stream (`application/vnd.apache.arrow.stream`); a daemon without pyarrow
    refuses that with an ApiError of status 406. The other parameters are those of `export`, but without `to_seq` the
    daemon decides where it ends. Nothing is repeated: a stream that was cut off has no `$end`, and a connection that
    breaks raises ConnectionFailed in the block.
    """
    where = calls.target(
        calls.topic_path(topic, "records"),
        from_seq=from_seq,
        to_seq=to_seq,
        from_ts=from_ts,
        to_ts=to_ts,
        match=match,
        node=[node] if isinstance(node, str) else list(node),
        include_tags=include_tags,
        include_meta=include_meta,
        include_data=None if include_data else False,
        epoch=epoch,
        filter=None if filter is None else calls.filter_text(filter),
    )
    return ClientCall(method="GET", target=where, accept=accept, repeatable=True)


def export(
    topic: str,
    from_seq: int = 0,
    *,
    to_seq: int | None = None,
    from_ts: int | None = None,
    to_ts: int | None = None,
    match: str | None = None,
    node: str | Iterable[str] = (),
    include_tags: bool = True,
    include_meta: bool = True,
    include_data: bool = True,
    epoch: int | None = None,
    filter: calls.Filter | None = None,
) -> ExportDownload:
    """The records of a topic from after `from_seq` up to and including `to_seq` (None: the head when the export
    begins), in one stream.

    `from_ts` and `to_ts` keep only the records that were appended between these two times (ms since the epoch). `match`
    keeps only the records with that tag; with a final `*` it is a prefix of tags. `node` leaves out what these nodes
    have appended, `filter` what does not match it. `epoch` is the instance of the topic that `from_seq` belongs to
    (None: the current one); if the topic was made again since, the export begins with a Tombstone whose reason is
    `recreated`.

    A stream that breaks is opened again where it ended, for as long as the client's `retry` allows since the last
    record that has come. With `match`, `node` or `filter` the daemon may find nothing for longer than the client's
    `timeout`: after a stream that has broken, the rest is read in steps. Raises NotFound where there is no such topic.
    """
    nodes = [node] if isinstance(node, str) else list(node)
    return ExportDownload(
        topic,
        from_seq,
        to_seq,
        epoch,
        ExportOptions(from_ts, to_ts, match, nodes, include_tags, include_meta, include_data, filter),
    )


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Which records an export brings, and what of each."""

    from_ts: int | None = None
    to_ts: int | None = None
    match: str | None = None
    node: Sequence[str] = ()
    include_tags: bool = True
    include_meta: bool = True
    include_data: bool = True
    filter: calls.Filter | None = None

    @property
    def leaves_out(self) -> bool:
        """Return True if there may be records that the export does not bring."""
        return self.match is not None or bool(self.node) or self.filter is not None


class ExportDownload:
    """One export, over as many streams as it takes. `begin` it with the answer to `state_call`; then, until it is
    `done`, `feed` it the bytes of the stream that `call` asks for, and say that the stream is `finished`."""

    def __init__(
        self, topic: str, from_seq: int, to_seq: int | None, epoch: int | None, options: ExportOptions = ExportOptions()
    ) -> None:
        self.position = from_seq
        """The last seq that was read, was looked at, or is known to be missing."""
        self.done = False
        """True if the export is complete."""
        self._topic = topic
        self._to_seq = to_seq
        self._epoch = epoch
        self._options = options
        self._lines = LineDecoder()
        self._in_steps = False
        self._asked_to: int | None = None
        """The last seq that the present stream was asked for; None before the first, and for all that there is."""
        self._end: _End | None = None
        """The end that the present stream has said."""
        self._is_broken = False
        """True until the present stream is finished."""

    def state_call(self) -> ClientCall[results.TopicState]:
        """The call for the state of the topic, which says where the export ends."""
        return calls.state(self._topic, touch=False)

    def begin(self, state: results.TopicState) -> None:
        """Take the head and the epoch of the topic for `to_seq` and `epoch` where these were not given."""
        self._to_seq = state.head_seq if self._to_seq is None else self._to_seq
        self._epoch = state.epoch if self._epoch is None else self._epoch

    def call(self) -> ClientCall[bytes]:
        """The call for the next stream, with the records after `position`. The rest of a line that was cut off is
        forgotten."""
        options = self._options
        self._in_steps = self._in_steps or (self._is_broken and options.leaves_out)
        self._lines.clear()
        self._end, self._is_broken = None, True
        self._asked_to = self._to_seq
        if self._in_steps and self._to_seq is not None:
            self._asked_to = min(self._to_seq, self.position + STEP)
        return export_stream(
            self._topic,
            self.position,
            to_seq=self._asked_to,
            from_ts=options.from_ts,
            to_ts=options.to_ts,
            match=options.match,
            node=options.node,
            include_tags=options.include_tags,
            include_meta=options.include_meta,
            include_data=options.include_data,
            epoch=self._epoch,
            filter=options.filter,
        )

    def feed(self, piece: bytes) -> Iterator[Record | Tombstone]:
        """Yield the records and tombstones that end in this piece. Raises ProtocolError for a line that is neither."""
        try:
            for line in self._lines.feed(piece):
                value = self._value(line)
                if value is not None:
                    yield value
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ProtocolError(f"a line of an export that is not one: {error}") from None

    def _value(self, line: bytes) -> Record | Tombstone | None:
        if line.startswith(b'{"$end"'):
            self._end = _end.decode(line).end
            return None
        if line.startswith(b'{"$tombstone"'):
            gap = _tombstone.decode(line).gap
            gap.topic = self._topic
            self.position = gap.gap_to if gap.reason != "recreated" else 0
            return gap
        record = _record.decode(line)
        record.topic = self._topic
        self.position = record.seq
        return record

    def finished(self) -> None:
        """Note that the stream has ended. The export is `done` if that was the last one. Raises ConnectionFailed if the
        stream is not complete."""
        end, asked_to = self._end, self._asked_to
        if end is None:
            raise ConnectionFailed("the export was cut off", outcome_unknown=True)
        self._is_broken = False
        self._epoch = end.epoch
        self.position = max(self.position, end.next_from_seq)
        self.done = asked_to == self._to_seq or asked_to is None or asked_to >= end.head_seq
        if not self.done and asked_to is not None:
            self.position = asked_to  # all up to there was looked at


# --- uploads ---------------------------------------------------------------------------------------------------------


def ingest(
    topic: str,
    records: Iterable[object],
    *,
    node: str | None = None,
    idempotency_key: str | None = None,
    create: bool | None = None,
    disable_backpressure: bool = False,
) -> ClientCall[results.Ingested]:
    """Upload any number of records in one stream. An item is a NewRecord, or a JSON value, which becomes the data of a
    record.

    The daemon stores them in atomic batches while they come. If the upload fails, the error's `detail` says how many
    records are stored (`committed`), the seq of the last of them (`last_seq`) and, for a bad line, its number (`line`).
    The client repeats nothing, since `records` may be an iterator. With an `idempotency_key` the caller may repeat the
    same upload, and the daemon stores only what is missing. `create=False` raises NotFound where there is no topic.
    """
    upload = pieces(records)
    return _upload(topic, upload, idempotency_key, node=node, create=create, disable_backpressure=disable_backpressure)


def ingest_async(
    topic: str,
    records: Iterable[object] | AsyncIterable[object],
    *,
    node: str | None = None,
    idempotency_key: str | None = None,
    create: bool | None = None,
    disable_backpressure: bool = False,
) -> ClientCall[results.Ingested]:
    """As `Client.ingest`; `records` may be an asynchronous iterable too. If the call is cancelled, the batches that the
    daemon has received completely may be stored."""
    upload = pieces_async(records)
    return _upload(topic, upload, idempotency_key, node=node, create=create, disable_backpressure=disable_backpressure)


def _upload(
    topic: str,
    upload: Iterator[bytes] | AsyncIterator[bytes],
    idempotency_key: str | None,
    *,
    node: str | None,
    create: bool | None,
    disable_backpressure: bool,
) -> ClientCall[results.Ingested]:
    return ClientCall(
        method="POST",
        target=_upload_target(topic, node=node, create=create, disable_backpressure=disable_backpressure),
        answer=results.Ingested,
        upload=upload,
        content_type=LINES,
        headers={} if idempotency_key is None else {"Idempotency-Key": idempotency_key},
        repeatable=False,
        waits=300.0 if disable_backpressure else 0.0,
    )


def _upload_target(
    topic: str, *, node: str | None, create: bool | None, disable_backpressure: bool, stage: str | None = None
) -> str:
    path = calls.topic_path(topic)
    return calls.target(path, stage=stage, node=node, create=create, disable_backpressure=disable_backpressure or None)


# --- stages ----------------------------------------------------------------------------------------------------------


def stage(
    topic: str,
    stage: str,
    records: Iterable[object],
    *,
    node: str | None = None,
    idempotency_key: str | None = calls.AUTO,
    create: bool | None = None,
    disable_backpressure: bool = False,
) -> ClientCall[results.Staged]:
    """Append records to a stage of a topic, where no reader sees them until `commit`.

    Items and keys are as in `append`; the records must fit into memory. The first records create the stage, and the
    topic too unless `create` is False.
    """
    lines = b"".join(pieces(records))
    key = uuid.uuid4().hex if idempotency_key == calls.AUTO else idempotency_key
    return staged(topic, stage, lines, key, node=node, create=create, disable_backpressure=disable_backpressure)


def staged(
    topic: str,
    stage: str,
    lines: bytes,
    idempotency_key: str | None,
    *,
    node: str | None = None,
    create: bool | None = None,
    disable_backpressure: bool = False,
) -> ClientCall[results.Staged]:
    """As `stage`, with records that are lines of NDJSON already. The key must be used for this stage alone."""
    where = _upload_target(topic, node=node, create=create, disable_backpressure=disable_backpressure, stage=stage)
    return ClientCall(
        method="POST",
        target=where,
        answer=results.Staged,
        body=lines,
        content_type=LINES,
        headers={} if idempotency_key is None else {"Idempotency-Key": idempotency_key},
        repeatable=idempotency_key is not None,
        waits=300.0 if disable_backpressure else 0.0,
    )


def pieces(records: Iterable[object]) -> Iterator[bytes]:
    """The NDJSON of records, in pieces of about `PIECE_BYTES`. Raises TypeError or ValueError for a value that JSON
    cannot express, and what `records` raises."""
    gathered = UploadPieces()
    for record in records:
        if (piece := gathered.add(record)) is not None:
            yield piece
    if (piece := gathered.rest()) is not None:
        yield piece


async def pieces_async(records: Iterable[object] | AsyncIterable[object]) -> AsyncIterator[bytes]:
    """As `pieces`, for an asynchronous client, with records of either kind of iterable."""
    if not isinstance(records, AsyncIterable):
        for piece in pieces(records):
            yield piece
        return
    gathered = UploadPieces()
    async for record in records:
        if (full := gathered.add(record)) is not None:
            yield full
    if (rest := gathered.rest()) is not None:
        yield rest


class UploadPieces:
    """Gathers encoded records into pieces that are large enough to be sent."""

    def __init__(self) -> None:
        self._lines: list[bytes] = []
        self._size = 0

    def add(self, record: object) -> bytes | None:
        """Add a record. Returns a piece if enough records have gathered for one, else None. Raises TypeError or
        ValueError for a value that JSON cannot express."""
        line = calls.encode_record(record)
        if b"\n" in line or b"\r" in line:
            line = line.replace(b"\n", b" ").replace(b"\r", b" ")  # between tokens of a `Raw`: nowhere else in JSON
        self._lines.append(line)
        self._size += len(line) + 1
        return self.rest() if self._size >= PIECE_BYTES else None

    def rest(self) -> bytes | None:
        """Return what has gathered as a piece; None if there is nothing."""
        if not self._lines:
            return None
        piece = b"\n".join(self._lines) + b"\n"
        self._lines.clear()
        self._size = 0
        return piece
