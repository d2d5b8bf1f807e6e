"""`DIVERGED`: what is known of the directory of a former owner that was set aside (`docs/design/standby.md` section 6).

The file is JSON, for people too. It says how far the bucket has the log of the directory. What is behind that was not
carried over (`topics inspect --diverged`).
"""

from __future__ import annotations

from typing import Final

import msgspec

from topics.bucket.local_note import BadNote
from topics.storage.files.fs import Fs, join, write_atomic

NAME: Final = "DIVERGED"
"""The file, in the directory that was set aside."""

MAX_BYTES: Final = 1 << 20
"""Of the file; far more than the places of 1024 shards take."""

_MOST: Final = 1 << 63


class DivergedNote(msgspec.Struct, kw_only=True, frozen=True):
    """Why a directory was set aside, and how far the bucket has its log."""

    bucket: str
    epoch: int
    """In which it was the owner."""
    round: int
    """The last round that has some of its log."""
    positions: list[tuple[int, int]] | None
    """How far the rounds have its log, by shard: file ordinal and offset; None if that is not known."""
    by: str
    """The node that has taken over."""
    by_epoch: int
    exact: bool = False
    """True if the rounds were looked at when the directory was set aside: `positions` are the end of the last whole cut
    that the bucket has of this log. Otherwise they are what the directory knew, and the bucket may have some seconds
    more."""


def write_diverged(fs: Fs, directory: str, note: DivergedNote) -> None:
    """Write the file, durably. Raises OSError."""
    write_atomic(fs, join(directory, NAME), msgspec.json.format(msgspec.json.encode(note)) + b"\n")


def read_diverged(fs: Fs, directory: str) -> DivergedNote:
    """Return what the file of a directory says. Raises FileNotFoundError, BadNote, OSError."""
    with fs.open(join(directory, NAME), read_only=True) as file:
        blob = file.pread(MAX_BYTES + 1, 0)
    if len(blob) > MAX_BYTES:
        raise BadNote(f"it has more than {MAX_BYTES} bytes")
    try:
        note = msgspec.json.decode(blob, type=DivergedNote)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadNote(f"it does not decode: {error}") from None
    numbers = [note.epoch, note.round, note.by_epoch, *(value for place in note.positions or () for value in place)]
    if any(not 0 <= number < _MOST for number in numbers):
        raise BadNote("a number in it cannot be")
    return note
