"""The file `meta/clock`: the state of the window clock when the daemon last saved it (`topics.runtime.window_clock`).

It is written at the end of a recovery, with each checkpoint and at a clean stop, whole or not at all. It is advisory: a
start that finds none, or a damaged one, uses the wall clock, and a failure to write it stops nothing.

The file is one CBOR map `{"clock": bytes, "xxh3": u64}`; the bytes are a CBOR list `[window, wall, boottime, boot id]`,
times in ms, and the checksum is over them.
"""

from __future__ import annotations

import cbor2
import xxhash

from topics.runtime.window_clock import ClockMark
from topics.storage.files.datadir import DataDir
from topics.storage.files.fs import Fs, write_atomic
from topics.telemetry.logs import get_logger

log = get_logger(__name__)


def write_mark(fs: Fs, datadir: DataDir, mark: ClockMark) -> None:
    """Write the mark, durably. An OSError is only logged. Blocking."""
    body = cbor2.dumps(list(mark), canonical=True)
    blob = cbor2.dumps({"clock": body, "xxh3": xxhash.xxh3_64_intdigest(body)}, canonical=True)
    try:
        write_atomic(fs, datadir.clock_path, blob)
    except OSError as error:
        log.warning("clock_mark_not_written", error=str(error), consequence="the next start may go by the wall clock")


def read_mark(fs: Fs, datadir: DataDir) -> ClockMark | None:
    """Return the last mark; None if there is no file, or no valid one. Blocking."""
    try:
        return decode_mark(fs.read(datadir.clock_path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        log.warning("clock_mark_unreadable", error=str(error), consequence="windows go by the wall clock from here on")
        return None


def decode_mark(blob: bytes) -> ClockMark:
    """Return the content of the file. Raises ValueError for any other bytes."""
    try:
        outer = cbor2.loads(blob)
        body = outer["clock"]
        window, wall, boottime, boot = cbor2.loads(body)
        checksum = outer["xxh3"]
    except Exception as error:  # malformed CBOR may raise anything
        raise ValueError(f"it does not decode: {error}") from error
    if checksum != xxhash.xxh3_64_intdigest(body):
        raise ValueError("the checksum does not match")
    if not all(type(value) is int and 0 <= value < 2**63 for value in (window, wall, boottime)):
        raise ValueError("a time that is none")
    if not isinstance(boot, str):
        raise ValueError("a boot id that is none")
    return ClockMark(window, wall, boottime, boot)
