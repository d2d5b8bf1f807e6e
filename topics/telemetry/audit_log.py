"""The audit log: one JSON line in a file of its own for each control-plane call and deletion, allowed or refused.

This module decides what a line holds (`make_entry`) and writes lines to the file (`AuditLog`). Which calls are audited
is said in `topics.http.routes`; the code that answers a call writes its line first.

Guarantees:

- A line is in the file before its call is answered. Lines do not overlap. They consist of visible ASCII characters,
  also where a client has sent others.
- Lines are not synced. They survive a crash of the daemon; a crash of the machine may lose the last seconds.
- Refused calls of one key or address beyond a rate share one line, which has their number and is written within a
  second (`audit_rate`).
- A line that cannot be written is counted and does not fail its call, which has been carried out by then. The first
  failure is logged, and so is the first success after it. If a failure has left half a line in the file, a line break
  is written behind it, so that the next line is whole.
"""

from __future__ import annotations

import errno
import os
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import unquote_to_bytes

import msgspec
import trio
from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import replace

from topics.telemetry.audit_rate import OTHERS, RefusalRate
from topics.telemetry.credentials import hide_credentials
from topics.telemetry.log_lines import escape_ascii
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

MAX_BODY: Final = 4 << 10
"""Bytes of a request body that are kept whole. Of a longer body only the length is in the line."""

MAX_QUERY: Final = 1 << 10
"""Characters of a query that are kept; the rest is cut off."""

SUMMARY_S: Final = 1.0
"""How often the lines about refused calls without a line of their own are written, seconds."""

_REFUSED: Final = range(400, 499)
"""Statuses of calls that have changed nothing."""

MAX_WAITING: Final = 256
"""Lines of a few KiB each that may wait to be written. Further callers wait before their line is made."""


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of the audit log. Fields with their default value are left out."""

    ts: str
    """When the answer was ready: RFC 3339 in UTC, with milliseconds."""
    request_id: str
    key: str
    """Who called: the name of the key (`key-1a2b3c4d`), `none` if the daemon has no keys, `unknown` for a 401."""
    peer: str = ""
    """Address and port of the client."""
    call: str
    """The name of the route, such as `put_topic`; `publish` for an append over a WebSocket."""
    topic: str = ""
    router: str = ""
    stage: str = ""
    fence: str = ""
    schedule: str = ""
    query: str = ""
    """As it was sent, without `token`."""
    body: Raw | UnsetType = UNSET
    """As it was sent, without white space; of an append only its `config`, never its records, nor that of a
    schedule."""
    body_bytes: int = 0
    """The length of a body that is not in `body`, because it is no JSON, longer than `MAX_BODY`, or has records."""
    status: int
    """499 for a client that left before there was an answer."""
    code: str = ""
    """The error code of the answer."""
    ms: float
    """Milliseconds from the beginning of the request to `ts`."""
    refused: int = 0
    """How many calls the line is about, if `call` is `refused`; they have no lines of their own."""


class _AuditAppend(msgspec.Struct):
    config: Raw | UnsetType = UNSET


class _AuditSchedule(msgspec.Struct, omit_defaults=True):
    """All of a schedule but its record."""

    topic: Raw | UnsetType = UNSET
    cron: Raw | UnsetType = UNSET
    every_ms: Raw | UnsetType = UNSET
    time_zone: Raw | UnsetType = UNSET
    catch_up: Raw | UnsetType = UNSET
    paused: Raw | UnsetType = UNSET


_append: Final = msgspec.json.Decoder(_AuditAppend)
_schedule: Final = msgspec.json.Decoder(_AuditSchedule)
_encode: Final = msgspec.json.Encoder().encode


def make_entry(
    *,
    now_ms: int,
    request_id: str,
    key: str,
    peer: tuple[str, int] | None,
    call: str,
    topic: str = "",
    router: str = "",
    stage: str = "",
    fence: str = "",
    schedule: str = "",
    query: bytes = b"",
    body: bytes = b"",
    status: int,
    code: str = "",
    ms: float,
) -> AuditEntry:
    """The line of a call. `peer` is the address and the port of the client; `query` is the query as it was sent, and
    `body` the body after decompression. Credentials in the query are left out."""
    kept = _body_of(call, body)
    return AuditEntry(
        ts=_moment(now_ms),
        request_id=request_id,
        key=key,
        peer="" if peer is None else f"{peer[0]}:{peer[1]}",
        call=call,
        topic=topic,
        router=router,
        stage=stage,
        fence=fence,
        schedule=schedule,
        query=_query_of(query),
        body=UNSET if kept is None else Raw(kept),
        body_bytes=len(body) if kept is None else 0,
        status=status,
        code=code,
        ms=round(ms, 3),
    )


def _moment(now_ms: int) -> str:
    seconds, ms = divmod(now_ms, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{ms:03d}Z"


def _query_of(query: bytes) -> str:
    # Bounds the work. A pair that is cut here still has the name by which it is hidden, or nothing of its value.
    pairs = query[: 4 * MAX_QUERY].split(b"&")
    pairs = [pair for pair in pairs if unquote_to_bytes(pair.partition(b"=")[0]).lower() != b"token"]
    text = b"&".join(pairs).decode("latin-1")
    return text if len(text) <= MAX_QUERY else text[:MAX_QUERY] + "..."


def _body_of(call: str, body: bytes) -> bytes | None:
    """The part of a body that is kept, as JSON on one line. None if only the length of the body is kept."""
    try:
        if call in ("append", "publish"):
            config = _append.decode(body).config
            if config is UNSET:
                return None
            body = bytes(config)
        elif call == "put_schedule":
            body = _encode(_schedule.decode(body))
        if not body or len(body) > MAX_BODY:
            return None
        body.decode()
        return msgspec.json.format(body, indent=-1)
    except (ValueError, RecursionError):
        return None


class _AuditBatch:
    """Lines that are written with one call: those that came while the lines before them were being written. The task
    of the first line writes all of them."""

    __slots__ = ("lines", "written")

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.written = trio.Event()


class AuditLog:
    """Writes lines to the file, which is kept open. `failures` counts the lines that could not be written.

    `open` and `close` block. The other methods are called by tasks of the loop; writing is done in a worker thread.
    """

    def __init__(self, path: Path) -> None:
        self.failures = 0
        self._path = path
        self._fd: int | None = None
        self._torn = False
        """True if the file ends in the middle of a line."""
        self._next = _AuditBatch()
        self._places = trio.CapacityLimiter(MAX_WAITING)
        self._turn = trio.Lock()
        self._threads = trio.CapacityLimiter(1)
        self._rate = RefusalRate()
        self._left_out: dict[str, AuditEntry] = {}
        """By source, the line about its refused calls that got none of their own; without their number."""
        self._lost = 0
        """Lines that were lost since lines could last be written."""

    def open(self) -> None:
        """Blocking: open the file, or create it with mode 0600. A file that is open already is closed after that.

        Raises OSError; the daemon does not start if it cannot write the audit log that it was told to keep.
        """
        # O_NONBLOCK: opening a pipe that nobody reads is an error, and must not block for ever.
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
        try:
            os.set_blocking(fd, True)
            torn = self._ends_torn(fd)
        except BaseException:
            os.close(fd)
            raise
        self.close()
        self._fd, self._torn = fd, torn

    def close(self) -> None:
        """Blocking: close the file. May be repeated."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    async def run(self) -> None:
        """Call `summarize` every `SUMMARY_S` seconds. Runs until cancelled."""
        while True:
            await trio.sleep(SUMMARY_S)
            await self.summarize()

    async def summarize(self) -> None:
        """Write a line with the number of refused calls for each key or address whose calls exceeded the rate."""
        for source, count in self._rate.take_counts(trio.current_time()).items():
            entry = self._left_out.pop(source, None)
            if entry is not None:
                await self._write(replace(entry, refused=count))

    async def write(self, entry: AuditEntry) -> None:
        """Write a line. Returns when it is in the file or counted as a failure; never raises.

        Cancellation does not interrupt it, because what was done must be in the log. The line of a refused call beyond
        the rate of its source is not written but counted for `summarize` (`topics.telemetry.audit_rate`).
        """
        if entry.status in _REFUSED and not self._admits(entry):
            return
        await self._write(entry)

    def _admits(self, entry: AuditEntry) -> bool:
        host = entry.peer.rpartition(":")[0]
        source = host if entry.key in ("unknown", "none") else entry.key
        source = self._rate.source(source)
        if self._rate.admit(source, trio.current_time()):
            return True
        of_all = source == OTHERS
        self._left_out[source] = AuditEntry(
            ts=entry.ts, request_id="", key=OTHERS if of_all else entry.key, peer="" if of_all else host,
            call="refused", status=entry.status, ms=0.0,
        )  # fmt: skip
        return False

    async def _write(self, entry: AuditEntry) -> None:
        line = escape_ascii(hide_credentials(_encode(entry).decode())).encode() + b"\n"
        with trio.CancelScope(shield=True):
            async with self._places:
                batch = self._next
                batch.lines.append(line)
                if len(batch.lines) > 1:
                    await batch.written.wait()
                    return
                try:
                    async with self._turn:
                        self._next = _AuditBatch()
                        await self._write_all(batch.lines)
                finally:
                    batch.written.set()

    async def reopen(self) -> None:
        """Open the file again by its name, because it may have been renamed (log rotation). If that fails, the old file
        stays in use and an error is logged. Cancellation does not interrupt it."""
        with trio.CancelScope(shield=True):
            async with self._turn:
                try:
                    await trio.to_thread.run_sync(self.open, limiter=self._threads)
                except (OSError, RuntimeError) as error:
                    log.error("audit_log_not_reopened", path=str(self._path), error=str(error))
                else:
                    log.info("audit_log_reopened", path=str(self._path))

    async def _write_all(self, lines: list[bytes]) -> None:
        try:
            error, lost = await trio.to_thread.run_sync(self._append, b"".join(lines), limiter=self._threads)
        except RuntimeError as no_thread:
            error, lost = no_thread, len(lines)
        if error is not None:
            if not self._lost:
                log.error(
                    "audit_log_failed",
                    path=str(self._path),
                    error=str(error),
                    consequence="calls are carried out without a line in the audit log",
                )
            self._lost += lost
            self.failures += lost
        elif self._lost:
            log.warning("audit_log_works_again", path=str(self._path), lines_lost=self._lost)
            self._lost = 0

    def _append(self, data: bytes) -> tuple[Exception | None, int]:
        """In a worker thread: write whole lines. Returns the error, if there was one, and how many of the lines are not
        in the file."""
        written = ahead = 0
        try:
            if self._fd is None or os.fstat(self._fd).st_nlink == 0:
                self.open()
            assert self._fd is not None
            if self._torn:
                data, ahead = b"\n" + data, 1
            while written < len(data):
                count = os.write(self._fd, data[written:])
                if not count:
                    raise OSError(errno.EIO, "nothing was written")
                written += count
                self._torn = not data.endswith(b"\n", 0, written)
        except OSError as error:
            return error, data.count(b"\n", max(written, ahead))
        return None, 0

    def _ends_torn(self, fd: int) -> bool:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or not found.st_size:
            return False
        try:
            with self._path.open("rb") as file:
                file.seek(found.st_size - 1)
                return file.read(1) != b"\n"
        except PermissionError:
            return False  # the file may be written but not read, so nobody can tell
