"""Bulk transfer over HTTP: exports, and ingests of NDJSON (`docs/spec/pipeline.md` section 1, `docs/design/bulk.md`).

Theory of operation. Neither an export nor an upload is ever in memory as a whole. The next slice of an export is made
when the socket has accepted the one before. An ingest reads the upload piece by piece. While one batch is committed,
the next is read and decoded; then nothing more is read until the first has its seqs. So the client waits for the log,
and its upload does not fill the memory. Each batch is an ordinary append. `topics.engine.operations.export` makes the
slices, and `topics.http.requests.line_batches` decides where a batch ends.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any, Final, Protocol

import trio
from msgspec import UNSET

from topics.auth.keys import Scope
from topics.engine.engine import Engine
from topics.engine.operations.export import Export, ExportEnd, ExportRequest, ExportSlice
from topics.errors import ApiError, invalid
from topics.http.accept import qualities
from topics.http.answer_types import IngestAnswer
from topics.http.answers.request_figures import ExportFigures, RequestFigures
from topics.http.calls import Call, ConnectionSight, OpenAnswer, Response, encode, idempotency_header
from topics.http.connections.connection import peer_of
from topics.http.handlers.stages import stage_response
from topics.http.openapi.strict_names import explained, is_strict
from topics.http.requests import append_requests, read_requests
from topics.http.requests.body_reader import LINES_TYPE, BodyStream
from topics.http.requests.line_batches import BATCH_BYTES, BATCH_RECORDS, FEED_BYTES, LineBatch, LineBatches
from topics.model import AppendResult, CheckedAppend, Performance, StageResult
from topics.runtime.turns import BULK_BYTES
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

ARROW_TYPE: Final = b"application/vnd.apache.arrow.stream"


class Bulk:
    """The handlers of exports and ingests."""

    def __init__(self, engine: Engine, figures: RequestFigures) -> None:
        self._engine = engine
        self._figures = figures
        self._arrow = Arrow()

    async def export(self, call: Call) -> ExportAnswer:
        """`GET /v0/topics/{topic}/records`."""
        kind = await self._format_of(call.headers.get(b"accept"))
        request = read_requests.decode_export(call.query, self._engine.settings)
        topic = call.params["topic"]
        made: ExportFormat
        if kind == ARROW_TYPE:
            request = request._replace(runs=True)
            made = self._arrow.stream(request)
        else:
            made = LinesFormat()
        export = await self._engine.exports.open(topic, request)
        # The first slice is read before the answer begins, so that a failure can be answered with an error. It ends
        # after `SLICE_S`, even if it has found nothing.
        first = await call.while_connected(export.next_slice)
        self._figures.exports[_name_of(kind), "true" if request.include_data else "false"] += 1
        return ExportAnswer(call, topic, export, first, made, self._figures.exported[_name_of(kind)])

    async def _format_of(self, accept: bytes | None) -> bytes:
        """The content type of an export. Raises `406 not_acceptable` if the client accepts none that is available."""
        kinds = wanted(accept)
        if kinds[:1] == [ARROW_TYPE] and not await self._arrow.is_there():
            kinds.remove(ARROW_TYPE)
        if not kinds:
            supported = [LINES_TYPE.decode()]
            if await self._arrow.is_there():
                supported.append(ARROW_TYPE.decode())
            raise ApiError("not_acceptable", f"an export is {' or '.join(supported)}", detail={"supported": supported})
        return kinds[0]

    async def ingest(self, call: Call, body: BodyStream) -> Response:
        """`POST /v0/topics/{topic}` with NDJSON."""
        return await Ingest(self._engine, call, body).run()


# --- export ----------------------------------------------------------------------------------------------------------


class ExportFormat(Protocol):
    """Encodes one export for the wire."""

    @property
    def content_type(self) -> bytes:
        """The `Content-Type` of the answer."""
        ...

    def piece(self, piece: ExportSlice) -> bytes:
        """The bytes of a slice; empty if there is nothing to send for it."""

    def end(self, end: ExportEnd) -> bytes:
        """The last bytes of the export."""


class LinesFormat:
    """NDJSON: a line for each record and each gap, and a last line `$end`."""

    content_type = LINES_TYPE

    def piece(self, piece: ExportSlice) -> bytes:
        """The lines of a slice, that of a gap first."""
        lines = piece.lines + b"\n" if piece.lines else b""
        if piece.tombstone is not None:
            lines = b'{"$tombstone":%b}\n%b' % (encode(piece.tombstone), lines)
        return lines

    def end(self, end: ExportEnd) -> bytes:
        """The line `$end`."""
        return encode({"$end": end._asdict()}) + b"\n"


class Arrow:
    """The module `topics.http.answers.arrow_stream`, if pyarrow is installed. It is imported in a thread when an export
    first asks for Arrow, because that takes most of a second."""

    def __init__(self) -> None:
        self._there: bool | None = None
        """True if it could be imported; None before the first try."""
        self._module: Any = None

    async def is_there(self) -> bool:
        """Return True if exports can be Arrow streams."""
        if self._there is None:
            try:
                self._module = await trio.to_thread.run_sync(_load_arrow)
            except ImportError as error:
                log.info("arrow_missing", error=str(error))
            self._there = self._module is not None
        return self._there

    def stream(self, request: ExportRequest) -> ExportFormat:
        """The encoder of one export. Call it only if `is_there`."""
        stream: ExportFormat = self._module.ArrowStream(request)
        return stream


def _load_arrow() -> Any:
    module = importlib.import_module("topics.http.answers.arrow_stream")
    module.load()
    return module


class ExportAnswer(OpenAnswer):
    """An export that is being sent. If it fails on the way, it ends without its last line, and the HTTP transfer is
    left unfinished."""

    in_flight = True

    def __init__(
        self,
        call: Call,
        topic: str,
        export: Export,
        first: ExportSlice | None,
        made: ExportFormat,
        figures: ExportFigures,
    ) -> None:
        self.key = call.key
        self._call = call
        self._topic = topic
        self._export = export
        self._first = first
        self._format = made
        self._figures = figures
        self._scope = trio.CancelScope()
        self._connection = call.connection

    @property
    def shows(self) -> tuple[Scope, Iterable[str]]:
        """The scope READ, and the topic."""
        return Scope.READ, (self._topic,)

    @property
    def sight(self) -> ConnectionSight:
        """Return the figures that operators see of the export."""
        return ConnectionSight("export", peer_of(self._connection), (self._topic,), self._export.left, 0)

    async def run(self) -> None:
        """Send the export. Raises ClientGone if the client has left."""
        call, exchange = self._call, self._call.exchange
        self._connection.allow_slow_reader()
        with self._scope:
            headers = [
                (b"content-type", self._format.content_type),
                (b"cache-control", b"no-store"),
                *call.answer_headers,
            ]
            await exchange.begin(200, headers)
            try:
                await call.while_connected(self._send_all)
            except ApiError as error:
                log.info("export_cut_off", topic=self._topic, code=error.code)
                return
            await exchange.end()

    def withdraw(self) -> None:
        """Break the export off."""
        self._scope.cancel()

    def close(self) -> None:
        """Do nothing: an export takes nothing that has to be given back."""

    async def _send_all(self) -> None:
        piece, self._first = self._first, None
        while piece is not None:
            self._figures.seqs += piece.examined
            self._figures.records += piece.records
            await self._send(self._format.piece(piece))
            piece = await self._export.next_slice()
        await self._send(self._format.end(self._export.end))

    async def _send(self, body: bytes) -> None:
        """Send one slice, and count it; of an empty one the head of the answer alone, if that is still to be sent.
        `Connection.answering` bounds the time that the reader has for it."""
        exchange = self._call.exchange
        with self._connection.answering(len(body), stream=exchange.is_http2):
            await (exchange.send(body) if body else exchange.send_head())
        self._figures.bytes += len(body)
        self._call.charge(len(body))


def wanted(accept: bytes | None) -> list[bytes]:
    """The formats that an Accept header allows, the preferred one first. The most specific range decides (RFC 9110,
    12.5.1). NDJSON is first if the header prefers neither."""
    if accept is None or not accept.strip():
        return [LINES_TYPE, ARROW_TYPE]
    found = qualities(accept)
    quality = {kind: _first_of(found, (kind, b"application/*", b"*/*")) for kind in (LINES_TYPE, ARROW_TYPE)}
    return sorted((kind for kind in quality if quality[kind] > 0), key=lambda kind: -quality[kind])


def _first_of(found: dict[bytes, float], names: Iterable[bytes]) -> float:
    return next((found[name] for name in names if name in found), 0.0)


def _name_of(kind: bytes) -> str:
    """The name of a format in the metrics."""
    return "arrow" if kind == ARROW_TYPE else "ndjson"


# --- ingest ----------------------------------------------------------------------------------------------------------


class _LineRefusal(Exception):
    """A line, or the batch that begins with it, was refused."""

    def __init__(self, line: int, error: ApiError) -> None:
        super().__init__(error.message)
        self.line = line
        self.error = error


class Ingest:
    """One upload. Every error that refuses it says in `detail` how far it has come: `line`, `committed`,
    `last_seq`."""

    def __init__(self, engine: Engine, call: Call, body: BodyStream) -> None:
        self._engine = engine
        self._call = call
        self._body = body
        self._topic = call.params["topic"]
        call.waits = True
        self._batches = self._broken_by(0, 0)
        self._query = append_requests.IngestQuery()
        self._strict = False
        self._key: str | None = None
        self._begun = 0
        """How many batches were given to the engine."""
        self._idle = trio.Event()
        """Set while no batch is being appended."""
        self._idle.set()
        self._decoded = self._on_its_way = 0
        """Bytes of the decoded batch that waits, and of the batch that is being appended."""
        self._failure: Exception | None = None
        """The failure of a batch; no batch is appended after it."""
        self._reading = trio.CancelScope()
        """Cancelled when a batch has failed, because the rest of the upload is not needed then."""
        self._first: AppendResult | StageResult | None = None
        self._last: AppendResult | StageResult | None = None
        self._committed = 0
        self._deduped = 0

    async def run(self) -> Response:
        """Read and append the whole upload.

        Raises ApiError (400, 404, 422, 429, 503), and ClientGone if the client leaves. Then the last batch, if it is
        incomplete, is not appended: a repeated upload recognises complete batches only.
        """
        try:
            self._query = append_requests.decode_ingest_query(self._call.query, self._engine.settings)
            self._strict = is_strict(self._call.headers)
            self._key = append_requests.check_key(idempotency_header(self._call), "Idempotency-Key")
            if self._query.stage is None:
                self._batches = self._broken_by(*self._engine.registry.caps_of(self._topic))
            await self._take_all()
        except _LineRefusal as refused:
            raise self._placed(refused.error, refused.line) from None
        except ApiError as error:
            raise self._placed(error, self._batches.line) from None
        return self._answer()

    def _broken_by(self, cap_records: int, cap_bytes: int) -> LineBatches:
        """Divides the upload into batches that the caps of the topic allow (0: no cap). The caps are read once, so that
        a later change of them does not change the batches. For a stage no caps are given, because those of its topic
        apply to the commit."""
        settings = self._engine.settings
        return LineBatches(
            min(BATCH_RECORDS, cap_records or BATCH_RECORDS, settings.max_batch_records),
            min(BATCH_BYTES, cap_bytes or BATCH_BYTES),
            append_requests.longest_line(settings),
        )

    async def _take_all(self) -> None:
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            try:
                with self._reading:
                    await self._read_all(nursery)
            except Exception as error:
                failure = error
        # The failure of a batch is reported rather than one of reading, which is further on in the upload.
        if self._failure is not None:
            raise self._failure
        if failure is not None:
            raise failure

    async def _read_all(self, nursery: trio.Nursery) -> None:
        while (piece := await self._body.next_piece()) is not None:
            for at in range(0, len(piece), FEED_BYTES):
                self._batches.feed(piece[at : at + FEED_BYTES])
                while (batch := self._batches.next()) is not None:
                    await self._begin(nursery, batch)
            self._release()
            self._check_phase()
        while (batch := self._batches.end()) is not None:
            await self._begin(nursery, batch)

    def _check_phase(self) -> None:
        if self._engine.status.phase == "draining":
            raise ApiError("shutting_down", "the daemon is stopping", retry_after_s=5)

    async def _begin(self, nursery: trio.Nursery, batch: LineBatch) -> None:
        """Decode a batch, wait until the one before it has been appended, and begin to append it."""
        settings, query = self._engine.settings, self._query
        if batch.size >= BULK_BYTES:
            await self._engine.turns.take(batch.size)
        try:
            plain = append_requests.decode_plain(batch.items, settings) if batch.plain else None
            if batch.plain and plain is None:
                self._batches.looks_for_plain = False
            request = plain or append_requests.decode_lines(batch.lines, settings, strict=self._strict)
        except append_requests.BadLine as bad:
            error = explained(bad.error, path="records[0]") if self._strict else bad.error
            raise _LineRefusal(batch.numbers[bad.index], error) from None
        request.node = query.node
        request.disable_backpressure = query.disable_backpressure
        # Only the first batch may create the topic: one that is deleted during the upload stays deleted.
        request.create = query.create if self._begun == 0 else False
        if self._key is not None:
            request.idempotency_key = f"{self._key}/{self._begun}"
        self._decoded = batch.size
        await self._idle.wait()
        self._begun += 1
        self._idle = trio.Event()
        self._decoded, self._on_its_way = 0, batch.size
        nursery.start_soon(self._append, batch, request)

    async def _append(self, batch: LineBatch, request: CheckedAppend) -> None:
        try:
            await self._commit(request)
        except ApiError as error:
            line = batch.numbers[0]
            if error.code == "schema_violation" and "record" in error.detail:
                line, error = batch.numbers[error.detail["record"]], _of_line(error)
            self._fail(_LineRefusal(line, error))
        except Exception as error:
            self._fail(error)
        finally:
            self._on_its_way = 0
            self._release()
            self._idle.set()

    def _fail(self, failure: Exception) -> None:
        self._failure = failure
        self._reading.cancel()

    async def _commit(self, request: CheckedAppend) -> None:
        perf = Performance()
        result: AppendResult | StageResult
        # Each batch has the time of a call: an upload of any length goes on as long as its batches do.
        with self._call.within(self._engine.settings.request_timeout_ms):
            if self._query.stage is None:
                result = await self._engine.appends.append(self._topic, request, perf)
            else:
                result = await self._engine.stages.append(self._topic, self._query.stage, request, perf)
        self._committed += result.count if isinstance(result, AppendResult) else len(request.datas)
        _add(self._call.perf, perf)
        self._first = self._first or result
        self._last = result
        self._deduped += result.deduped

    def _release(self) -> None:
        self._body.keep(self._batches.held + self._decoded + self._on_its_way)

    def _placed(self, error: ApiError, line: int) -> ApiError:
        """The error, with the line and with how far the upload has come. Records in a stage have no seqs yet."""
        detail: dict[str, Any] = {**error.detail, "line": line, "committed": self._committed}
        if self._query.stage is None:
            detail["last_seq"] = self._last.last_seq if isinstance(self._last, AppendResult) else 0
        return ApiError(
            error.code,
            f"line {line}: {error.message}",
            detail=detail,
            retry_after_s=error.retry_after_s,
            headers=error.headers,
        )

    def _answer(self) -> Response:
        if self._first is None or self._last is None:
            raise self._placed(invalid("body", "holds no record"), self._batches.line)
        performance = self._call.performance(self._engine.clock.perf_ns())
        if isinstance(self._last, StageResult):
            last = self._last
            return stage_response(self._topic, last.stage, last.count, performance, created=self._first.created)
        assert isinstance(self._first, AppendResult)
        answer = IngestAnswer(
            topic=self._topic,
            first_seq=self._first.first_seq,
            last_seq=self._last.last_seq,
            count=self._committed,
            batches=self._begun,
            head_seq=self._last.head_seq,
            created=self._first.created,
            deduped_batches=self._deduped,
            performance=performance,
        )
        return Response(201 if answer.created else 200, encode(answer))


def _of_line(error: ApiError) -> ApiError:
    """A violation of the schema as one of a line, not of a record of its batch."""
    detail = {name: value for name, value in error.detail.items() if name != "record"}
    return ApiError(error.code, error.message.partition(".")[2], detail=detail)


def _add(total: Performance, one: Performance) -> None:
    """Add the times of one batch to those of the whole upload."""
    for name in ("wal_append_ms", "fsync_ms", "throttle_wait_ms"):
        cost = getattr(one, name)
        if cost is not UNSET:
            before = getattr(total, name)
            setattr(total, name, cost if before is UNSET else before + cost)
