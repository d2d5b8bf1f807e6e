"""The bytes of the log that rounds carry: which files and places, and reading them.

A cut may have gigabytes, from files of which some are finished long ago. It is a list of *stretches*, one for each
file, and is divided into lists of runs of `ROUND_BYTES` at most. Only one of these is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from topics.bucket.round_format import Run
from topics.storage.files.file_header import FILE_HEADER_BYTES
from topics.storage.files.fs import Fs
from topics.storage.wal.wal_files import LogPosition, WalFile, WalFiles

ROUND_BYTES: Final = 16 << 20
"""Bytes of the log in one round."""


class LogGone(Exception):
    """The log lacks bytes that a round should have or that one has. The message is a phrase."""


class Stretch(NamedTuple):
    """Bytes of one file of the log, from `offset` up to `end`; None is its end."""

    file: WalFile
    offset: int
    end: int | None


class Piece(NamedTuple):
    """A run, and the file that has it."""

    run: Run
    path: str


def stretches(files: WalFiles, starts: Sequence[LogPosition], ends: Sequence[LogPosition]) -> list[Stretch]:
    """Return what is between two places of each shard, ascending by shard and place. Raises LogGone."""
    found = []
    for shard, (start, end) in enumerate(zip(starts, ends, strict=True)):
        there = files.of_shard(shard)
        if all(file.ordinal != start.ordinal for file in there):
            raise LogGone(f"shard {shard} of the log has no file {start.ordinal} any more")
        for file in there:
            if start.ordinal <= file.ordinal <= end.ordinal:
                offset = start.offset if file.ordinal == start.ordinal else 0
                found.append(Stretch(file, offset, end.offset if file.ordinal == end.ordinal else None))
    return found


def measured(fs: Fs, parts: Sequence[Stretch]) -> list[Stretch]:
    """Return the stretches with their ends. Raises OSError. Blocking."""
    found = []
    for part in parts:
        if part.end is None:
            with fs.open(part.file.path, read_only=True) as handle:
                part = part._replace(end=handle.size())
        found.append(part)
    return found


def divided(parts: Sequence[Stretch], most: int = ROUND_BYTES) -> Iterator[list[Piece]]:
    """Yield the runs of one round after another: `most` bytes each, the last one what is left. Empty stretches, whose
    ends are known, are left out. The header of a file is never divided: a standby reads it when it has the first run.
    Raises LogGone."""
    pieces: list[Piece] = []
    room = most
    for file, offset, end in parts:
        assert end is not None
        if end < offset:
            raise LogGone(f"{file.path} ends at {end}, before {offset}")
        at = offset
        while at < end:
            if pieces and not at and room < min(FILE_HEADER_BYTES, end):
                yield pieces
                pieces, room = [], most
            length = min(end - at, room)
            pieces.append(Piece(Run(file.shard, file.ordinal, at, length), file.path))
            at += length
            room -= length
            if not room:
                yield pieces
                pieces, room = [], most
    if pieces:
        yield pieces


def read_pieces(fs: Fs, pieces: Sequence[Piece]) -> list[bytes]:
    """Return the bytes of the runs. Raises LogGone, OSError. Blocking."""
    found = []
    for run, path in pieces:
        with fs.open(path, read_only=True) as handle:
            data = handle.pread(run.length, run.offset)
        if len(data) != run.length:
            raise LogGone(f"{path} ends before {run.offset + run.length}")
        found.append(bytes(data))
    return found
