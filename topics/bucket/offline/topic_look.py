"""Whether a restore of the newest state of a bucket would have topics (`docs/design/bucket.md` section 5).

A base may be some minutes behind the rounds, and the first topics are in rounds only until there is another one. So
the rounds are read from the first one on that a replay needs.
"""

from __future__ import annotations

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
    salts: dict[tuple[int, int], int | None] = {}
    topics: set[int] = set()
    for one in reader.rounds(base.head.first_round):
        found = reader.round(one.number)
        if found.head.begins_history:
            salts.clear()
            topics.clear()
        for run, data in found.pieces():
            if not _look(run, bytes(data), salts, topics):
                return True
    return bool(topics)


def _look(run: Run, data: bytes, salts: dict[tuple[int, int], int | None], topics: set[int]) -> bool:
    """Note which topics a run creates and deletes. Return False if it cannot be read."""
    file, at = (run.shard, run.ordinal), 0
    if not run.offset:
        try:
            header = decode_file_header(data[:FILE_HEADER_BYTES])
        except BadFileHeader:
            return False
        salts[file], at = (header.salt, FILE_HEADER_BYTES) if header is not None else (None, 0)
    if file not in salts:
        return False
    try:
        scan = scan_window(data[at:], run.offset + at, file_end=run.offset + run.length, salt=salts[file])
    except UnknownFrameType:
        return False
    for index in scan.controls:
        kind, topic_id = scan.rows[index][2], scan.rows[index][4]
        if kind == _CREATES:
            topics.add(topic_id)
        elif kind == _DELETES:
            topics.discard(topic_id)
    return scan.reason != "bad"
