"""Reading request bodies: as they come, never more than the limits, and to the end even where nobody wants them any
more.

Theory of operation. Hypercorn hands a request's body over through a short queue, and its reader blocks while that is
full. An application that answers and returns with the body unread would leave the reader blocked for ever; one that
closes the connection with input unread makes the kernel send a reset, which overtakes the answer. So a body is always
read to its end: kept while it is wanted (`read_body`), dropped afterwards (`discard_body`), and where the end is too
far off the connection is aborted, which is the only other way out.

A body of lines may be of any length (`BodyStream`): whoever wants it takes it piece by piece, and as long as nobody
asks for the next one, the queue is full and the client waits.

Bodies of all requests together are bounded by a `ByteBudget`. Bytes are taken as they arrive, not as they are
announced, so that nobody can reserve memory by promising to send something. Two half-read bodies may wait for each
other; the first whose wait times out is refused and gives back what it held. And bytes that were taken are not held for
as long as a client likes: one that takes too long over its body is cut off (`_Patience`).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

import trio

from topics.config import Settings
from topics.errors import ApiError, invalid, throttled
from topics.http.budgets.byte_budget import ByteBudget
from topics.http.budgets.byte_shares import ByteShares
from topics.http.calls import Call, ClientGone, Message
from topics.http.connections.connection import Connection
from topics.http.connections.patience import BODY_BYTES_PER_S, BODY_GRACE_S, BODY_IDLE_S
from topics.http.connections.protocols.stream_access import (
    ask_for_body,
    bytes_of_unfinished_frame,
    cut_off,
    receive_nowait,
)
from topics.http.requests.topic_requests import MAX_COMMIT_BYTES
from topics.http.routes import Body
from topics.runtime.withdrawal import interruptible
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

# What is still read of a body that was refused, so that a client which sends first and listens later gets its answer.
DISCARD_BYTES: Final = 256 << 20
DISCARD_S: Final = 10.0
# A refused body of at most this is read before the answer, so that the connection can be kept.
SMALL_BODY: Final = 64 << 10
SMALL_BODY_S: Final = 1.0

# Inflated at a time: about 1 ms of the loop; less where more is done with it at once.
_INFLATE_STEP: Final = 256 << 10
_STREAM_STEP: Final = 64 << 10
# Input of one step: some hundred members at most.
_INPUT_STEP: Final = 16 << 10
MAX_EMPTY_MEMBERS: Final = 1000
# Pieces of a body that are shorter are put together.
_SMALL_PIECE: Final = 4 << 10

JSON_TYPE: Final = b"application/json"
LINES_TYPE: Final = b"application/x-ndjson"


class BodyReader:
    """Reads the bodies of requests within `TOPICS_MAX_BODY_BYTES` and `TOPICS_MAX_INFLIGHT_BYTES`."""

    def __init__(self, settings: Settings, share: Callable[[], float] = lambda: 1.0) -> None:
        self._limit = settings.max_body_bytes
        self._call_limit = min(settings.max_call_bytes, self._limit)
        self._wait_s = settings.admission_ms / 1000
        self.budget = ByteBudget(settings.max_inflight_bytes)
        self.shares = ByteShares(self.budget, self._limit, share)

    async def read_body(self, call: Call, kind: Body) -> bytes:
        """The whole JSON body, inflated. What is held is added to `call.held`, and the caller gives it back.

        Raises 413, 415 (content type, encoding), 429 (no memory within `TOPICS_ADMISSION_MS`), 400 (bad gzip), and
        `ClientGone` if the client leaves in the middle or is too slow. `kind` says how long it may be; a call that
        takes NDJSON as well says so in a 415.
        """
        headers = call.headers
        kinds = (JSON_TYPE, LINES_TYPE) if kind is Body.JSON_OR_LINES else (JSON_TYPE,)
        name, limit = self._limit_of(kind)
        declared = headers.get(b"content-length")
        gzipped = _is_gzip(headers.get(b"content-encoding", b""))
        if declared is not None and declared.isdigit() and _number(declared) > 0:
            _check_json(headers.get(b"content-type"), kinds)
            if not gzipped and _number(declared) > limit:
                raise _too_large(name, limit)
        kept = _Joiner()
        pieces = _Pieces(call, min(_INFLATE_STEP, limit + 1) if gzipped else 0)
        # Deflate can go on for ever without a byte of output.
        most_received = limit + (limit >> 3) + SMALL_BODY if gzipped else limit
        while True:
            with interruptible():
                piece = await pieces.next()
            if piece is None:
                break
            if pieces.received and not kept.size:
                _check_json(headers.get(b"content-type"), kinds)
            if kept.size + len(piece) > limit or pieces.received > most_received:
                raise _too_large(name, limit)
            if piece:
                await self.hold(call, len(piece))
                kept.add(piece)
        return kept.join()

    def _limit_of(self, kind: Body) -> tuple[str, int]:
        """The limit of a JSON body by its name, and what it is."""
        if kind is Body.JSON_OR_LINES:
            return "max_body_bytes", self._limit
        if kind is Body.NAMES:
            return "max_commit_bytes", min(MAX_COMMIT_BYTES, self._limit)
        return "max_call_bytes", self._call_limit

    def stream(self, call: Call) -> BodyStream:
        """The body of a call that takes it piece by piece. Raises 415 (encoding)."""
        return BodyStream(self, call)

    async def skip_body(self, call: Call) -> None:
        """Receive a body that means nothing to the call. Raises 413, 415 for one that is sent and no JSON, and
        `ClientGone`."""
        received = 0
        patience = _Patience(call)
        while not call.body_complete:
            with interruptible():
                received += len(await patience.receive_chunk())
            if received and call.method in ("POST", "PUT"):
                _check_json(call.headers.get(b"content-type"), (JSON_TYPE,))
            if received > self._limit:
                raise _too_large("max_body_bytes", self._limit)

    def release(self, call: Call) -> None:
        """Give back what the call holds. May be repeated."""
        self.keep(call, 0)

    def keep(self, call: Call, size: int) -> None:
        """Give back all that the call holds but for `size` bytes."""
        if size < call.held:
            self.shares.of(call.key.digest).give_back(call.held - size)
            call.held = size

    async def hold(self, call: Call, size: int) -> None:
        """The call holds so many bytes more. Raises 429."""
        budget = self.shares.of(call.key.digest)
        if not budget.try_take(size):
            with interruptible():
                taken = await budget.take(size, self._wait_s)
                call.held += size * taken
            if not taken:
                raise throttled("max_inflight_bytes", budget.limit)
        else:
            call.held += size


def _too_large(name: str, limit: int) -> ApiError:
    return ApiError("payload_too_large", f"the body is larger than {limit} bytes", detail={"limit": name, "max": limit})


def _number(declared: bytes) -> int:
    """A `Content-Length` of digits; whatever has too many of them is larger than any limit."""
    return int(declared) if len(declared) < 20 else 1 << 64


class BodyStream:
    """A body of any length, inflated, piece by piece. What was taken counts as held until `keep` says otherwise."""

    def __init__(self, reader: BodyReader, call: Call) -> None:
        self._reader = reader
        self._call = call
        gzipped = _is_gzip(call.headers.get(b"content-encoding", b""))
        self._pieces = _Pieces(call, _STREAM_STEP if gzipped else 0)

    async def next_piece(self) -> bytes | None:
        """The next piece, which may be empty; None at the end. Others have had a turn since the last one.

        Raises 429 (no memory within `TOPICS_ADMISSION_MS`), 400 (bad gzip), and `ClientGone` if the client leaves in
        the middle or is too slow.
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
        """Of all that was taken, so many bytes are still needed."""
        self._reader.keep(self._call, size)


class _Joiner:
    """Puts pieces of any length together. An object for each would be many times as large as pieces of a byte or two,
    so none is kept that is shorter than `_SMALL_PIECE`, but for the last."""

    def __init__(self) -> None:
        self.size = 0
        self._pieces: list[bytes] = []
        self._small = bytearray()

    @property
    def objects(self) -> int:
        """How many are kept."""
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
        """All of them."""
        if self._small:
            self._pieces.append(bytes(self._small))
        return self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)


class _Pieces:
    """A body as it comes, inflated `inflate_step` bytes at a time (0: it is not compressed)."""

    def __init__(self, call: Call, inflate_step: int) -> None:
        self.received = 0
        """Bytes that have come, as they were sent."""
        self._call = call
        self._patience = _Patience(call)
        self._inflater = _Inflater(inflate_step) if inflate_step else None

    async def next(self) -> bytes | None:
        """The next piece; empty where nothing has come of what was received; None at the end."""
        inflater = self._inflater
        if inflater is not None and inflater.pending:
            piece = inflater.next_piece()
            await trio.lowlevel.checkpoint()
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


class _Patience:
    """How long is waited for a body. Only waiting for the client counts, not what the daemon lets it wait for."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._received = 0
        self._seen = 0
        """Bytes that are known to have come; of an HTTP/2 frame only the whole is received."""
        self._waited = 0.0
        self._quiet = 0.0
        """Waited since more was seen."""

    async def receive_chunk(self) -> bytes:
        """As `receive_chunk` below. A client that takes too long is cut off, and is gone."""
        while True:
            if (message := receive_nowait(self._call.receive)) is not None:
                chunk = _chunk_of(self._call, message)
                self._received += len(chunk)
                self._count(0.0, self._received)
                return chunk
            await ask_for_body(self._call.send)
            began = trio.current_time()
            with trio.move_on_after(self._left()):
                chunk = await receive_chunk(self._call)
                self._received += len(chunk)
                self._count(trio.current_time() - began, self._received)
                return chunk
            self._count(trio.current_time() - began, self._received + bytes_of_unfinished_frame(self._call.send))
            if not self._left():
                connection: Connection = self._call.scope["state"]["connection"]
                log.info("body_too_slow", peer=connection.peer, received=self._seen)
                await cut_off(self._call.send, connection)
                raise ClientGone

    def _count(self, waited: float, seen: int) -> None:
        self._waited += waited
        self._quiet = 0.0 if seen > self._seen else self._quiet + waited
        self._seen = max(self._seen, seen)

    def _left(self) -> float:
        in_all = max(BODY_GRACE_S, self._seen / BODY_BYTES_PER_S)
        return max(0.0, min(BODY_IDLE_S - self._quiet, in_all - self._waited))


async def receive_chunk(call: Call) -> bytes:
    """The next piece of the body, which may be empty; sets `call.body_complete` at the end. Raises `ClientGone`."""
    return _chunk_of(call, await call.receive())


def _chunk_of(call: Call, message: Message) -> bytes:
    if message["type"] == "http.disconnect":
        raise ClientGone
    call.body_complete = not message.get("more_body", False)
    body: bytes = message.get("body", b"")
    return body


async def discard_body(call: Call, max_bytes: int = DISCARD_BYTES, timeout_s: float = DISCARD_S) -> bool:
    """Receive and drop the rest of the body. False if it goes on beyond the bounds. Raises `ClientGone`."""
    dropped = 0
    with trio.move_on_after(timeout_s):
        while not call.body_complete and dropped <= max_bytes:
            dropped += len(await receive_chunk(call))
    return call.body_complete


def has_small_rest(call: Call) -> bool:
    """Whether the body is announced as small, or not announced at all."""
    declared = call.headers.get(b"content-length", b"0")
    return declared.isdigit() and _number(declared) <= SMALL_BODY


def is_lines(call: Call) -> bool:
    """Whether the body of a call says that it is NDJSON."""
    return _kind_of(call.headers.get(b"content-type")) == LINES_TYPE


def _kind_of(content_type: bytes | None) -> bytes:
    return (content_type or b"").partition(b";")[0].strip().lower()


def _check_json(content_type: bytes | None, kinds: tuple[bytes, ...]) -> None:
    """Whether a body is JSON; `kinds` is what the call takes in all."""
    kind = _kind_of(content_type)
    if kind != JSON_TYPE:
        supported = [kind.decode() for kind in kinds]
        wanted = " or ".join(supported)
        raise ApiError(
            "unsupported_media_type",
            f"the body must be {wanted}" if kind else f"a body needs a content type: {wanted}",
            detail={"content_type": kind.decode("latin-1"), "supported": supported},
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
    """Gunzips piece by piece; a piece is bounded whatever the ratio. Members may follow each other (RFC 1952, 2.2).

    The work of a step is bounded as well: at most `_INPUT_STEP` bytes of input, which is also what is copied for each
    member that ends in it. Of members without content, which cost as much as others and yield nothing, there may be
    `MAX_EMPTY_MEMBERS`.
    """

    def __init__(self, step: int) -> None:
        self._step = step
        self._member = zlib.decompressobj(wbits=31)
        self._fed = b""
        self._at = 0
        """Of what was fed, so much has been taken as input."""
        self._input = b""
        self._full = False
        self._is_empty = True
        """Whether nothing has come of the member."""
        self._empty_members = 0

    def feed(self, data: bytes) -> None:
        """More input, while nothing is `pending`."""
        self._fed, self._at = data, 0

    @property
    def pending(self) -> bool:
        """Whether there may be more output without more input."""
        return bool(self._input) or self._full or self._at < len(self._fed)

    def next_piece(self) -> bytes:
        """The output of one step, which may be empty. Raises 400 for what is not gzip."""
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
        """Raises 400 if the input ended before its last member."""
        if not self._member.eof:
            raise invalid("body", "is not valid gzip: it ends too soon")
