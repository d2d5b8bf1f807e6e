"""`meta/restore`: from which bucket a directory was restored, while segments of it are still there
(`docs/design/bucket.md` section 8). A JSON object, for people, too."""

from __future__ import annotations

from contextlib import suppress

import msgspec

from topics.storage.files.datadir import DataDir
from topics.storage.files.fs import Fs


class BadRestoreNote(ValueError):
    """The note is damaged. The message is a phrase."""


class RestoreNote(msgspec.Struct, kw_only=True, frozen=True):
    """The content of `meta/restore`."""

    url: str
    """Where the bucket is."""
    bucket: str
    """Its id."""
    base: int
    """The base that was restored: its segments are needed."""
    pin: str
    """The id of the pin that keeps them."""


def encode_restore_note(note: RestoreNote) -> bytes:
    """Return the bytes of the note."""
    return msgspec.json.format(msgspec.json.encode(note)) + b"\n"


def read_restore_note(fs: Fs, datadir: DataDir) -> RestoreNote | None:
    """Return the note; None if there is none. Raises BadRestoreNote, OSError. Blocking."""
    try:
        blob = fs.read(datadir.restore_path)
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(blob, type=RestoreNote)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadRestoreNote(f"it is malformed: {error}") from error


def remove_restore_note(fs: Fs, datadir: DataDir) -> None:
    """Remove the note, durably, if it is there. Raises OSError. Blocking."""
    with suppress(FileNotFoundError):
        fs.unlink(datadir.restore_path)
    fs.sync_dir(datadir.meta_dir)
