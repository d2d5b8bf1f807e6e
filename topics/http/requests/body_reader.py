"""Receiving request bodies: within the limits, and always to the end.

Theory of operation. Hypercorn gives the body of a request to the handler through a short queue, and the reader of the
connection blocks while the queue is full. If a handler answered without reading the body, the reader would stay blocked
for ever. If it closed the connection with unread input, the kernel would send a reset, which overtakes the answer. So a
body is always received to its end: it is kept while it is wanted (`read_body`) and dropped otherwise (`discard_body`).
If its end is too far off, the connection is aborted, which is the only other way.

A body of lines may have any length (`BodyStream`). The handler takes it piece by piece. Until it asks for the next
piece, the queue is full and the client waits.

A `ByteBudget` bounds the bodies of all requests together. Bytes are counted when they arrive, not when they are
announced, so that nobody can reserve memory with an announcement. Two incomplete bodies may wait for each other; the
first whose wait times out is refused and gives its bytes back. A client that takes too long over its body is cut off
(`_BodyTimeout`), so that it cannot hold the memory.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final, Literal

import trio

from topics.config import Settings
from topics.errors import ApiError, invalid, throttled
from topics.http.budgets.byte_budget import ByteBudget
from topics.http.budgets.byte_shares import ByteShares
from topics.http.calls import Call
from topics.http.connections.body_timeouts import BODY_BYTES_PER_S, BODY_GRACE_S, BODY_IDLE_S
from topics.http.connections.exchange import ClientGone
from topics.http.requests.topic_requests import MAX_COMMIT_BYTES
from topics.http.routes import BodyKind
from topics.raw_bytes import MAX_TYPE, RAW_TYPES, is_raw_kind, normal_type, room_for_bytes
from topics.runtime.turns import BULK_BYTES, Turns
from topics.runtime.withdrawal import interruptible
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

# How much of a refused body is still received, and how long, so that a client that reads only after it has sent all
# gets its answer.
DISCARD_BYTES: Final = 256 << 20
DISCARD_S: Final = 10.0
# A refused body of at most this length is received before the answer, so that the connection can be kept.
SMALL_BODY: Final = 64 << 10
SMALL_BODY_S: Final = 1.0

# Bytes that are inflated in one step of the loop, about 1 ms; fewer if they are also decoded in it.
_INFLATE_STEP: Final = 256 << 10
_STREAM_STEP: Final = 64 << 10
# Compressed bytes that are taken in one step: at most some hundred gzip members.
_INPUT_STEP: Final = 16 << 10
MAX_EMPTY_MEMBERS: Final = 1000
# Shorter pieces of a body are joined.
_SMALL_PIECE: Final = 4 << 10
# A body of so many bytes is joined in a worker thread: 60 MB take 40 ms, without the lock of the interpreter.
_JOINED_ON_LOOP: Final = 1 << 20

_JSON: Final = "application/json"
JSON_TYPE: Final = _JSON.encode()
LINES_TYPE: Final = b"application/x-ndjson"


class BodyReader:
    """Receives the bodies of requests within `TOPICS_MAX_BODY_BYTES` and `TOPICS_MAX_INFLIGHT_BYTES`. `share` returns
    the share of the latter that one key may take, 0 to 1."""

    def __init__(self, settings: Settings, turns: Turns, share: Callable[[], float] = lambda: 1.0) -> None:
        self.turns = turns
        self._limit = settings.max_body_bytes
        self._call_limit = min(settings.max_call_bytes, self._limit)
        self._max_record = settings.max_record_bytes
        self._wait_s = settings.admission_ms / 1000
        self.budget = ByteBudget(settings.max_inflight_bytes)
        self.shares = ByteShares(self.budget, self._limit, share)

    async def read_body(self, call: Call, kind: BodyKind) -> bytes:
        """Receive a body of JSON or raw bytes and decompress it. `kind` says which it may be, and how long.

        The bytes are counted in `call.held`, and the caller gives them back with `release`. Raises 413, 415 (content
        type or encoding), 429 (no memory within `TOPICS_ADMISSION_MS`), 400 (bad gzip; raw bytes that are too many for
        a record), and ClientGone if the client leaves in the middle or is too slow.
        """
        headers = call.headers
        if headers.get(b"content-type") == JSON_TYPE and b"content-encoding" not in headers:
            body = call.exchange.whole_body(min(SMALL_BODY, self._limit_of(kind)))
            if body is not None:
                await self.hold(call, len(body))
                return body
        is_raw = kind is BodyKind.APPEND and raw_type(call) is not None
        limit = self._limit_of_raw() if is_raw else self._limit_of(kind)
        declared = headers.get(b"content-length")
        gzipped = _is_gzip(headers.get(b"content-encoding", b""))
        _check_announced(call, kind)
        if declared is not None and declared.isdigit() and not gzipped and _number(declared) > limit:
            raise self._too_large(kind, limit, is_raw=is_raw)
        kept = _Joiner()
        pieces = _Pieces(call, min(_INFLATE_STEP, limit + 1) if gzipped else 0, self.turns)
        # Compressed data of any length can have no output at all.
        most_received = limit + (limit >> 3) + SMALL_BODY if gzipped else limit
        while True:
            with interruptible():
                piece = await pieces.next()
            if piece is None:
                break
            if pieces.received and not kept.size:
                _check_type(headers.get(b"content-type"), kind)
            if kept.size + len(piece) > limit or pieces.received > most_received:
                raise self._too_large(kind, limit, is_raw=is_raw)
            if piece:
                await self.hold(call, len(piece))
                kept.add(piece)
        return kept.join() if kept.size < _JOINED_ON_LOOP else await trio.to_thread.run_sync(kept.join)

    def _limit_of(self, kind: BodyKind) -> int:
        """The most bytes of a JSON body."""
        if kind in (BodyKind.APPEND, BodyKind.RECORDS):
            return self._limit
        if kind is BodyKind.RESULTS:
            return min(self._call_limit + self._max_record, self._limit)
        return min(MAX_COMMIT_BYTES, self._limit) if kind is BodyKind.NAMES else self._call_limit

    def _limit_of_raw(self) -> int:
        """The most raw bytes that fit into a record of any type."""
        return max(0, room_for_bytes(self._max_record))

    def _too_large(self, kind: BodyKind, limit: int, *, is_raw: bool) -> ApiError:
        """The error for a body of more than `limit` bytes."""
        return raw_too_large(self._max_record, limit) if is_raw else _too_large(_LIMITS.get(kind, _OTHER_LIMIT), limit)

    def stream(self, call: Call) -> BodyStream:
        """The body of a call whose handler takes it piece by piece. Raises 415 for an unknown encoding."""
        return BodyStream(self, call)

    async def skip_body(self, call: Call) -> None:
        """Receive and drop the body of a call that uses none. Raises 413, 415 (of a POST or PUT, if the body is no
        JSON), and ClientGone."""
        received = 0
        if call.method in ("POST", "PUT"):
            _check_announced(call, BodyKind.JSON)
        timeout = _BodyTimeout(call)
        while not call.body_complete:
            with interruptible():
                received += len(await timeout.receive_chunk())
            if received and call.method in ("POST", "PUT"):
                _check_type(call.headers.get(b"content-type"), BodyKind.JSON)
            if received > self._limit:
                raise _too_large("max_body_bytes", self._limit)

    def release(self, call: Call) -> None:
        """Give back all bytes that the call holds. May be repeated."""
        self.keep(call, 0)

    def keep(self, call: Call, size: int) -> None:
        """Give back all but `size` of the bytes that the call holds."""
        if size < call.held:
            self.shares.of(call.key.digest).give_back(call.held - size)
            call.held = size

    async def hold(self, call: Call, size: int) -> None:
        """Count `size` more bytes that the call holds. Waits for them at most `TOPICS_ADMISSION_MS`; raises `429
        throttled` if they do not become free."""
        budget = self.shares.of(call.key.digest)
        if not budget.try_take(size):
            with interruptible():
                taken = await budget.take(size, self._wait_s)
                call.held += size * taken
            if not taken:
                raise throttled("max_inflight_bytes", budget.limit)
        else:
            call.held += size


_LIMITS: Final = {
    BodyKind.APPEND: "max_body_bytes",
    BodyKind.RECORDS: "max_body_bytes",
    BodyKind.NAMES: "max_commit_bytes",
    BodyKind.RESULTS: "max_call_bytes and max_record_bytes",
}
"""The names of the limits on JSON bodies."""
_OTHER_LIMIT: Final = "max_call_bytes"


def raw_too_large(max_record_bytes: int, room: int) -> ApiError:
    """The `400 record_too_large` for raw bytes, of which `room` fit into a record."""
    return ApiError(
        "record_too_large",
        f"raw bytes are stored as base64 in JSON: at most {room} of them fit into a record of {max_record_bytes} bytes",
        detail={"field": "body", "max": max_record_bytes, "max_raw_bytes": room},
    )


def _too_large(name: str, limit: int) -> ApiError:
    return ApiError("payload_too_large", f"the body is larger than {limit} bytes", detail={"limit": name, "max": limit})


def _number(declared: bytes) -> int:
    """The value of a `Content-Length` of digits. One with too many digits counts as larger than any limit."""
    return int(declared) if len(declared) < 20 else 1 << 64


class BodyStream:
    """A body of any length, received and decompressed piece by piece. All pieces count as held until `keep` gives some
    back."""

    def __init__(self, reader: BodyReader, call: Call) -> None:
        self._reader = reader
        self._call = call
        gzipped = _is_gzip(call.headers.get(b"content-encoding", b""))
        self._pieces = _Pieces(call, _STREAM_STEP if gzipped else 0, reader.turns)

    async def next_piece(self) -> bytes | None:
        """The next piece, which may be empty; None at the end. Other tasks run before it.

        Raises 429 (no memory within `TOPICS_ADMISSION_MS`), 400 (bad gzip), and ClientGone if the client leaves in the
        middle or is too slow.
        """
        await trio.lowlevel.checkpoint()
        before = self._pieces.received
        with interruptible():
            piece = await self._pieces.next()
        self._call.charge(self._pieces.received - before)
        if piece:
            await self._reader.hold(self._call, len(piece))
        return piece

    def keep(self, size: int) -> None:
        """Give back all but `size` of the bytes that were taken."""
        self._reader.keep(self._call, size)


class _Joiner:
    """Joins pieces of any length. Pieces shorter than `_SMALL_PIECE` are joined as they come, because an object for
    each piece of a byte or two would take many times its memory."""

    def __init__(self) -> None:
        self.size = 0
        self._pieces: list[bytes] = []
        self._small = bytearray()

    @property
    def objects(self) -> int:
        """How many objects are kept."""
        return len(self._pieces) + 1

    def add(self, piece: bytes) -> None:
        self.size += len(piece)
        if len(piece) >= _SMALL_PIECE and not self._small:
            self._pieces.append(piece)
            return
        self._small += piece
        if len(self._small) >= _SMALL_PIECE:
            self._pieces.append(bytes(self._small))
            self._small.clear()

    def join(self) -> bytes:
        """All pieces as one. They are kept no longer."""
        pieces, self._pieces = self._pieces, []
        if self._small:
            pieces.append(bytes(self._small))
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class _Pieces:
    """The pieces of a body as they come, decompressed `inflate_step` bytes at a time (0: the body is not
    compressed)."""

    def __init__(self, call: Call, inflate_step: int, turns: Turns) -> None:
        self.received = 0
        """Bytes that have come, before decompression."""
        self._inflated = 0
        self._turns = turns
        self._call = call
        self._patience = _BodyTimeout(call)
        self._inflater = _Inflater(inflate_step) if inflate_step else None

    async def next(self) -> bytes | None:
        """The next piece, which is empty if the input so far has no output yet; None at the end."""
        inflater = self._inflater
        if inflater is not None and inflater.pending:
            if self._inflated < BULK_BYTES:
                await trio.lowlevel.checkpoint()
            else:
                await self._turns.take()
            piece = inflater.next_piece()
            self._inflated += len(piece)
            return piece
        if self._call.body_complete:
            if inflater is not None and self.received:
                inflater.finish()
            return None
        chunk = await self._patience.receive_chunk()
        self.received += len(chunk)
        if inflater is None:
            return chunk
        inflater.feed(chunk)
        return b""


class _BodyTimeout:
    """Bounds the time for which a body is waited for. Only time spent waiting for the client counts, not the time in
    which the daemon makes the client wait."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._received = 0
        self._seen = 0
        """Bytes that are known to have come, including those of an incomplete HTTP/2 frame."""
        self._waited = 0.0
        """Seconds waited in all."""
        self._quiet = 0.0
        """Seconds waited since the last new byte."""

    async def receive_chunk(self) -> bytes:
        """The next piece of the body, which may be empty; a client that takes too long is cut off. Raises ClientGone
        for it too."""
        exchange = self._call.exchange
        while True:
            if (chunk := exchange.receive_nowait()) is not None:
                self._received += len(chunk)
                self._count(0.0, self._received)
                return chunk
            await exchange.ask_for_body()
            began = trio.current_time()
            with trio.move_on_after(self._left()):
                chunk = await exchange.receive()
                self._received += len(chunk)
                self._count(trio.current_time() - began, self._received)
                return chunk
            self._count(trio.current_time() - began, self._received + exchange.bytes_of_unfinished_frame())
            if not self._left():
                log.info("body_too_slow", peer=exchange.connection.peer, received=self._seen)
                await exchange.cut_off()
                raise ClientGone

    def _count(self, waited: float, seen: int) -> None:
        self._waited += waited
        self._quiet = 0.0 if seen > self._seen else self._quiet + waited
        self._seen = max(self._seen, seen)

    def _left(self) -> float:
        in_all = max(BODY_GRACE_S, self._seen / BODY_BYTES_PER_S)
        return max(0.0, min(BODY_IDLE_S - self._quiet, in_all - self._waited))


async def discard_body(call: Call, max_bytes: int = DISCARD_BYTES, timeout_s: float = DISCARD_S) -> bool:
    """Receive and drop the rest of a body. Return False if it exceeds `max_bytes` or takes longer than `timeout_s`
    seconds. Raises ClientGone."""
    dropped = 0
    with trio.move_on_after(timeout_s):
        while not call.body_complete and dropped <= max_bytes:
            dropped += len(await call.exchange.receive())
    return call.body_complete


def has_small_rest(call: Call) -> bool:
    """Return True if the announced length of the body is small, or if no length is announced."""
    declared = call.headers.get(b"content-length", b"0")
    return declared.isdigit() and _number(declared) <= SMALL_BODY


Carried = Literal["json", "lines", "bytes", "unknown"]
"""The kind of the body of an append: JSON (also if there is none), NDJSON, the raw bytes of one record, or a type that
is not accepted."""


def carried_by(call: Call) -> Carried:
    """Return the kind of the body of an append, by its content type."""
    kind = _kind_of(call.headers.get(b"content-type"))
    if kind in (JSON_TYPE, b""):
        return "json"
    return "lines" if kind == LINES_TYPE else "unknown" if raw_type(call) is None else "bytes"


def is_lines(call: Call) -> bool:
    """Return True if the content type of the body is NDJSON."""
    return _kind_of(call.headers.get(b"content-type")) == LINES_TYPE


def raw_type(call: Call) -> str | None:
    """The normal content type of a body of raw bytes; None if it is none, or is malformed."""
    content_type = call.headers.get(b"content-type", JSON_TYPE)
    return None if content_type == JSON_TYPE else normal_type(content_type.decode("latin-1"))


def _kind_of(content_type: bytes | None) -> bytes:
    return (content_type or b"").partition(b";")[0].strip().lower()


def _check_announced(call: Call, kind: BodyKind) -> None:
    """Check by its headers that the body of a call may have its content type, before it is asked for. Raises 415.

    A content type that the call does not take is refused even if there is no body, because pages of strangers can send
    such requests without asking first. No content type is right if there is no body, and one without a length may be
    empty, unless the client waits for `100 Continue`.
    """
    headers = call.headers
    declared = headers.get(b"content-length", b"")
    waits = b"expect" in headers and b"transfer-encoding" in headers
    if (declared.isdigit() and _number(declared)) or waits or _kind_of(headers.get(b"content-type")):
        _check_type(headers.get(b"content-type"), kind)


def _check_type(content_type: bytes | None, kind: BodyKind) -> None:
    """Check that a body that is no NDJSON may have a content type. Raises 415."""
    named = _kind_of(content_type).decode("latin-1")
    if named == _JSON:
        return
    supported, message = [_JSON], "the body must be {}" if named else "a body needs a content type: {}"
    if kind is BodyKind.APPEND:
        said = (content_type or b"").decode("latin-1")
        if normal_type(said) is not None:
            return
        supported += [LINES_TYPE.decode(), *RAW_TYPES]
        if is_raw_kind(said):
            message = f"the content type is malformed, or has more than {MAX_TYPE} characters"
    raise ApiError(
        "unsupported_media_type",
        message.format(" or ".join(supported)),
        detail={"content_type": named, "supported": supported},
    )


def _is_gzip(content_encoding: bytes) -> bool:
    encoding = content_encoding.strip().lower()
    if encoding in (b"", b"identity"):
        return False
    if encoding in (b"gzip", b"x-gzip"):
        return True
    raise ApiError(
        "unsupported_media_type",
        "the content encoding must be gzip or identity",
        detail={"content_encoding": encoding.decode("latin-1"), "supported": ["gzip", "identity"]},
    )


class _Inflater:
    """Decompresses gzip in pieces of at most `step` bytes, at any ratio of compression. Several members may follow each
    other (RFC 1952, 2.2).

    The work of one step is bounded as well: it takes at most `_INPUT_STEP` bytes of input, which are copied once for
    each member that ends in them. At most `MAX_EMPTY_MEMBERS` members may be empty, because an empty member costs as
    much as another and has no output.
    """

    def __init__(self, step: int) -> None:
        self._step = step
        self._member = zlib.decompressobj(wbits=31)
        self._fed = b""
        self._at = 0
        """How many of the fed bytes have been taken as input."""
        self._input = b""
        self._full = False
        """True if the decompressor may have more output without more input."""
        self._is_empty = True
        """True while the present member has had no output."""
        self._empty_members = 0

    def feed(self, data: bytes) -> None:
        """Add input. Call it only while nothing is `pending`."""
        self._fed, self._at = data, 0

    @property
    def pending(self) -> bool:
        """Return True if there may be more output without more input."""
        return bool(self._input) or self._full or self._at < len(self._fed)

    def next_piece(self) -> bytes:
        """The output of one step, which may be empty. Raises `400 invalid_request` for input that is not gzip."""
        if not self._input:
            self._input = self._fed[self._at : self._at + _INPUT_STEP]
            self._at += len(self._input)
        while self._input or self._full:
            if self._member.eof:
                self._member = zlib.decompressobj(wbits=31)
                self._is_empty = True
            try:
                piece = self._member.decompress(self._input, self._step)
            except zlib.error:
                raise invalid("body", "is not valid gzip") from None
            self._input = self._member.unused_data if self._member.eof else self._member.unconsumed_tail
            # A full piece may leave output behind in the decompressor when the input is used up.
            self._full = len(piece) == self._step and not self._member.eof
            if piece:
                self._is_empty = False
                return piece
            if self._member.eof and self._is_empty:
                self._empty_members += 1
                if self._empty_members > MAX_EMPTY_MEMBERS:
                    raise invalid("body", f"more than {MAX_EMPTY_MEMBERS} members of its gzip are empty")
        return b""

    def finish(self) -> None:
        """Raise `400 invalid_request` if the input has ended within a member."""
        if not self._member.eof:
            raise invalid("body", "is not valid gzip: it ends too soon")
