"""Whether a restore of the newest state of a bucket would have topics (`docs/design/bucket.md` section 5).

A base may be some minutes behind the rounds, and the first topics are in rounds only until there is another one. So
the rounds are read from the first one on that a replay needs.
"""

from __future__ import annotations

import sys

from topics.bucket.offline.bucket_reader import BucketReader
from topics.bucket.round_format import Run
from topics.storage.files.file_header import FILE_HEADER_BYTES, BadFileHeader, decode_file_header
from topics.storage.wal.frames import FrameType, UnknownFrameType, scan_window

_CREATES = int(FrameType.TOPIC_CREATE)
_DELETES = int(FrameType.TOPIC_DELETE)


def has_topics(reader: BucketReader) -> bool:
    """Return True if the newest base or the rounds behind it have a topic, or if what they have cannot be read as a
    log. False without a base: nothing can be restored then. Blocking. Raises BucketDamaged, StoreError."""
    bases = reader.bases()
    if not bases:
        return False
    base = reader.base(bases[-1].number)
    if base.body.pages:
        return True
    files: dict[tuple[int, int], _OpenFile] = {}
    topics: set[int] = set()
    for one in reader.rounds(base.head.first_round):
        found = reader.round(one.number)
        if found.head.begins_history:
            files.clear()
            topics.clear()
        for run, data in found.pieces():
            file = _OpenFile() if not run.offset else files.get((run.shard, run.ordinal))
            if file is None or not file.look(run, bytes(data), topics):
                return True
            files[run.shard, run.ordinal] = file
    return bool(topics)


class _OpenFile:
    """A file of the log, as far as rounds have it. A round may end inside a frame."""

    def __init__(self) -> None:
        self._salt: int | None = None
        self._end = 0
        self._rest = b""
        """The bytes in front of `_end` that are no whole frame yet."""

    def look(self, run: Run, data: bytes, topics: set[int]) -> bool:
        """Note which topics a run creates and deletes. Return False if it cannot be read."""
        if run.offset != self._end:
            return False
        at, data = self._end - len(self._rest), self._rest + data
        self._end, self._rest = run.offset + run.length, data
        if not at:
            if len(data) < FILE_HEADER_BYTES:
                return True
            try:
                header = decode_file_header(data[:FILE_HEADER_BYTES])
            except BadFileHeader:
                return False
            if header is not None:
                self._salt, at, data = header.salt, FILE_HEADER_BYTES, data[FILE_HEADER_BYTES:]
        try:
            scan = scan_window(data, at, file_end=sys.maxsize, salt=self._salt)
        except UnknownFrameType:
            return False
        self._rest = data[scan.stop - at :]
        for index in scan.controls:
            kind, topic_id = scan.rows[index][2], scan.rows[index][4]
            if kind == _CREATES:
                topics.add(topic_id)
            elif kind == _DELETES:
                topics.discard(topic_id)
        return scan.reason != "bad"
