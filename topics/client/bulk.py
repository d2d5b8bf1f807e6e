"""Exports and uploads of any length, to stages too (`docs/spec/pipeline.md` section 1): the calls, and what an export
knows.

Pure: no I/O. The clients open the streams and hand in the bytes; `Export` says what they mean, and where to go on after
a break.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Final

import msgspec

from topics.client import calls, results
from topics.client.calls import Call
from topics.client.errors import ConnectionFailed, ProtocolError
from topics.client.lines import Lines
from topics.client.results import Record, Tombstone

LINES: Final = "application/x-ndjson"
ARROW: Final = "application/vnd.apache.arrow.stream"
"""What an export can be asked for as. The daemon has Arrow where pyarrow is installed."""

PIECE_BYTES: Final = 256 << 10
"""An upload is sent in pieces of about this size, or of one record."""

FromTo = tuple[int | None, int | None]


class _TombstoneLine(msgspec.Struct):
    gap: Tombstone = msgspec.field(name="$tombstone")


class _End(msgspec.Struct):
    next_from_seq: int


class _EndLine(msgspec.Struct):
    end: _End = msgspec.field(name="$end")


_record = msgspec.json.Decoder(Record)
_tombstone = msgspec.json.Decoder(_TombstoneLine)
_end = msgspec.json.Decoder(_EndLine)


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
    accept: str = LINES,
) -> Call[bytes]:
    """An export as the daemon sends it, in one of its formats: LINES or ARROW."""
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
    )
    return Call(method="GET", target=where, accept=accept, repeatable=True)


class Export:
    """One export, over as many connections as it takes. `position` is the last seq that was read."""

    def __init__(
        self,
        topic: str,
        from_seq: int,
        to_seq: int,
        *,
        epoch: int,
        ts: FromTo,
        match: str | None,
        node: str | Iterable[str],
        include_tags: bool,
        include_meta: bool,
        include_data: bool = True,
    ) -> None:
        self.position = from_seq
        self.done = False
        self._topic = topic
        self._to_seq = to_seq
        self._epoch = epoch
        self._ts = ts
        self._match = match
        self._nodes = [node] if isinstance(node, str) else list(node)
        self._include_tags = include_tags
        self._include_meta = include_meta
        self._include_data = include_data
        self._lines = Lines()

    def call(self) -> Call[bytes]:
        """The call for what comes after `position`."""
        self._lines.clear()
        return export(
            self._topic,
            self.position,
            to_seq=self._to_seq,
            from_ts=self._ts[0],
            to_ts=self._ts[1],
            match=self._match,
            node=self._nodes,
            include_tags=self._include_tags,
            include_meta=self._include_meta,
            include_data=self._include_data,
            epoch=self._epoch,
        )

    def feed(self, piece: bytes) -> Iterator[Record | Tombstone]:
        """What is complete with this piece. Raises ProtocolError for what is no export."""
        try:
            for line in self._lines.feed(piece):
                value = self._value(line)
                if value is not None:
                    yield value
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ProtocolError(f"a line of an export that is not one: {error}") from None

    def _value(self, line: bytes) -> Record | Tombstone | None:
        if line.startswith(b'{"$end"'):
            self.position = max(self.position, _end.decode(line).end.next_from_seq)
            self.done = True
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
        """The stream has ended. Raises ConnectionFailed if it was cut off."""
        if not self.done:
            raise ConnectionFailed("the export was cut off", outcome_unknown=True)


def ingest(
    topic: str,
    pieces: Iterator[bytes] | AsyncIterator[bytes],
    *,
    node: str | None,
    idempotency_key: str | None,
    create: bool | None,
    disable_backpressure: bool,
) -> Call[results.Ingested]:
    """An upload of records that are encoded already, one a line."""
    where = calls.target(
        calls.topic_path(topic),
        node=node,
        create=create,
        disable_backpressure=disable_backpressure or None,
    )
    return Call(
        method="POST",
        target=where,
        answer=results.Ingested,
        upload=pieces,
        content_type=LINES,
        headers={} if idempotency_key is None else {"Idempotency-Key": idempotency_key},
        repeatable=False,
        waits=300.0 if disable_backpressure else 0.0,
    )


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
) -> Call[results.Staged]:
    """Append records to a stage of a topic, where nobody sees them until `commit`. Items and keys are as in `append`,
    any number of records that fit into memory. A stage is made with its first records, and the topic with it unless
    `create` is False."""
    gathered = Pieces()
    pieces = [piece for record in records if (piece := gathered.add(record)) is not None]
    lines = b"".join([*pieces, gathered.rest() or b""])
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
) -> Call[results.Staged]:
    """The same of records that are lines of NDJSON already. The key has to be one of this stage alone."""
    where = calls.target(
        calls.topic_path(topic),
        stage=stage,
        node=node,
        create=create,
        disable_backpressure=disable_backpressure or None,
    )
    return Call(
        method="POST",
        target=where,
        answer=results.Staged,
        body=lines,
        content_type=LINES,
        headers={} if idempotency_key is None else {"Idempotency-Key": idempotency_key},
        repeatable=idempotency_key is not None,
        waits=300.0 if disable_backpressure else 0.0,
    )


class Pieces:
    """Encoded records, gathered into pieces that are worth sending."""

    def __init__(self) -> None:
        self._lines: list[bytes] = []
        self._size = 0

    def add(self, record: object) -> bytes | None:
        """Take a record; a piece if there is enough for one. Raises TypeError or ValueError for what is no JSON."""
        line = calls.encode_record(record)
        if b"\n" in line or b"\r" in line:
            line = line.replace(b"\n", b" ").replace(b"\r", b" ")  # between tokens of a `Raw`: nowhere else in JSON
        self._lines.append(line)
        self._size += len(line) + 1
        return self.rest() if self._size >= PIECE_BYTES else None

    def rest(self) -> bytes | None:
        """What is left; None if there is nothing."""
        if not self._lines:
            return None
        piece = b"\n".join(self._lines) + b"\n"
        self._lines.clear()
        self._size = 0
        return piece
