"""`meta/bucket`: what a data directory knows of its bucket (`docs/design/bucket.md` sections 3 and 5).

The file is one CBOR map `{"note": bytes, "xxh3": u64}`; the bytes are a CBOR map, the checksum is over them. It may be
behind the bucket by some rounds: the archive reads those at a start. Files of the log stay as far as the note needs
them.
"""

from __future__ import annotations

import cbor2
import msgspec
import xxhash

from topics.storage.files.datadir import DataDir
from topics.storage.files.fs import Fs, write_atomic


class BadNote(ValueError):
    """The note is damaged."""


class BucketNote(msgspec.Struct, kw_only=True):
    """The content of `meta/bucket`."""

    bucket: str
    """The id of the bucket; empty if none has been taken yet."""
    dir: str
    """The id of this directory, which `owner` has."""
    epoch: int = 0
    round: int = 0
    """The last round that is known to be in the bucket."""
    hash: bytes = b""
    """Of that round."""
    wall_ms: int = 0
    """Its wall time."""
    positions: list[tuple[int, int]] | None = None
    """How far the rounds have the log, by shard; None if a history is to begin."""
    history: int = 0
    """The first round of the history."""
    files: list[tuple[int, int, int]] = []
    """Shard and ordinal of files of the log, and the round that has their first byte."""


def read_note(fs: Fs, datadir: DataDir, path: str | None = None) -> BucketNote | None:
    """Return the note, None if there is none. `path` is that of another file of this form: `meta/standby`. Raises
    BadNote, OSError. Blocking."""
    try:
        blob = fs.read(path or datadir.bucket_path)
    except FileNotFoundError:
        return None
    try:
        outer = cbor2.loads(blob)
        body = outer["note"]
        if outer["xxh3"] != xxhash.xxh3_64_intdigest(body):
            raise BadNote("its checksum does not match")
        return msgspec.convert(cbor2.loads(body), BucketNote)
    except BadNote:
        raise
    except Exception as error:  # malformed CBOR may raise anything
        raise BadNote(f"it does not decode: {error}") from error


def write_note(fs: Fs, datadir: DataDir, note: BucketNote, path: str | None = None) -> None:
    """Replace the note, durably. Raises OSError. Blocking."""
    body = cbor2.dumps(msgspec.to_builtins(note, builtin_types=(bytes,)), canonical=True)
    blob = cbor2.dumps({"note": body, "xxh3": xxhash.xxh3_64_intdigest(body)}, canonical=True)
    write_atomic(fs, path or datadir.bucket_path, blob)
