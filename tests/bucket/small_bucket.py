"""A bucket that is filled from a simulated life, as the archive fills one, with a reader of its own for files.

Rounds are cut where the log is synced. A base is made from the files that a hold names. So that a restore has to do its
part, the flags of deleted records are taken out of the segments that are put into it.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import cbor2
import msgspec

from tests.bucket.simulated_objects import SimObjects
from tests.simulation.disk import Op, SimFs
from tests.simulation.offload import InlineOffload
from tests.simulation.wal_content import scan_of
from tests.simulation.world import COLD, ROOT, Life
from topics.bucket.base_format import (
    PAGE_TOPICS,
    BaseBody,
    BaseHead,
    BlobRef,
    LeafFileEntry,
    LeavesEntry,
    PackBuilder,
    SealedFile,
    SegmentEntry,
    TopicEntry,
    encode_base,
    encode_page,
)
from topics.bucket.bases.base_writer import BaseWriter
from topics.bucket.object_names import (
    FORMAT,
    OWNER,
    PackName,
    SegmentKind,
    SegmentName,
    base_name,
    pack_name,
    round_name,
    segment_name,
)
from topics.bucket.object_store import ObjectExists
from topics.bucket.ownership.owner_format import BucketFormat, Owner, encode_format, encode_owner
from topics.bucket.round_format import NO_HASH, RoundHead, Run, decode_round, encode_round
from topics.log.span import DELETED
from topics.storage.evidence.leaf_files import parse_leaf_name
from topics.storage.files.datadir import parse_segment_file, parse_wal_name, wal_path
from topics.storage.recovery.restored_copy import MARK
from topics.storage.segments.index_format import IDX_DELETED, decode_index, encode_index
from topics.storage.segments.packed_format import decode_pack_header, packed_bytes
from topics.storage.segments.packed_reads import unpacked
from topics.storage.segments.segment_format import LIVE_FLAG, delete_flag_offset
from topics.storage.snapshots.snapshot import Snapshot, decode_part, decode_snapshot
from topics.storage.wal.wal_files import LogPosition

HOLD_MS = 500
PIECE = 700
"""Bytes of a piece of an active segment."""
LARGE_PART = 600
"""From so many bytes on a part is a blob of its own."""

Position = tuple[int, int]
"""Ordinal and offset."""


@dataclass
class SmallBucket:
    """A bucket of one owner."""

    objects: SimObjects = field(default_factory=SimObjects)
    epoch: int = 1
    is_old: bool = False
    """True: the first round has bytes of the log, as those of earlier versions have."""
    id: str = "small"
    hash: bytes = NO_HASH
    """Of the last round."""
    number: int = 0
    """Of the last round."""
    wall_ms: int = 0
    """Of the last round: clocks are set back, and these times are not."""
    positions: dict[int, Position] = field(default_factory=dict)
    """By shard, what the rounds have."""
    removed: dict[str, bytes] = field(default_factory=dict)
    """Files of the log that are not there any more."""
    begins: dict[tuple[int, int], int] = field(default_factory=dict)
    """By shard and ordinal, the round with the first byte of a file."""
    packs: int = 0
    at: dict[int, SimFs] = field(default_factory=dict)
    """By round, the owner's disk as of its cut, without what the log has behind it."""
    now_ms: dict[int, int] = field(default_factory=dict)
    life: Life | None = None
    writer: BaseWriter | None = None

    def begin(self, life: Life) -> None:
        """Make what comes before the first round."""
        self.objects.put_new(FORMAT, encode_format(BucketFormat(bucket=1, id=self.id)))
        owner = Owner(epoch=self.epoch, node="test", dir="d", state="held", nonce="n")
        self.objects.put_new(OWNER, encode_owner(owner))

        def keep(op: Op) -> None:
            if op.name == "unlink" and op.path.endswith(".log"):
                self.removed[op.path] = life.fs.read(op.path)

        life.fs.subscribe(keep)

    def round(self, life: Life, *, parts: int = 1) -> int:
        """Put a cut into the bucket, in so many rounds. Return the number of the last one."""
        ends = {writer.shard: tuple(writer.synced_position()[0]) for writer in life.store.writers}
        if not self.number and not self.is_old:
            self.positions = {shard: (self._ordinals(life, shard)[0], 0) for shard in ends}
            self._put_round(life, [], ends_cut=False)
        runs = [one for writer in life.store.writers for one in self._runs(life, writer.shard, ends[writer.shard])]
        divided = [runs[len(runs) * i // parts : len(runs) * (i + 1) // parts] for i in range(parts)]
        for i, some in enumerate(divided):
            self._put_round(life, some, ends_cut=i == parts - 1)
        self.positions = {shard: (end[0], end[1]) for shard, end in ends.items()}
        assert self.number
        self.at[self.number] = cut_copy(life.fs, self.positions)
        self.now_ms[self.number] = life.clock.now_ms()
        return self.number

    def _ordinals(self, life: Life, shard: int) -> list[int]:
        directory = life.store.datadir.shard_dir(shard, life.store.shards)
        there = [*life.fs.listdir(directory), *(posixpath.basename(path) for path in self.removed_in(directory))]
        return sorted({at for name in there if (at := parse_wal_name(name)) is not None})

    def _runs(self, life: Life, shard: int, end: tuple[int, ...]) -> list[tuple[Run, bytes]]:
        directory = life.store.datadir.shard_dir(shard, life.store.shards)
        done = self.positions.get(shard, (-1, 0))
        found = []
        for ordinal in self._ordinals(life, shard):
            if not done[0] <= ordinal <= end[0]:
                continue
            path = wal_path(directory, ordinal)
            content = life.fs.read(path) if life.fs.exists(path) else self.removed[path]
            start = done[1] if ordinal == done[0] else 0
            stop = end[1] if ordinal == end[0] else scan_of(content).stop
            if stop > start:
                found.append((Run(shard, ordinal, start, stop - start), content[start:stop]))
        return found

    def removed_in(self, directory: str) -> list[str]:
        """The files of a shard that are not there any more."""
        return [path for path in self.removed if posixpath.dirname(path) == directory]

    def _put_round(self, life: Life, runs: list[tuple[Run, bytes]], *, ends_cut: bool) -> None:
        self.number += 1
        self.wall_ms = max(self.wall_ms, life.clock.now_ms())
        for run, _ in runs:
            if not run.offset:
                self.begins[run.shard, run.ordinal] = self.number
            self.positions[run.shard] = (run.ordinal, run.offset + run.length)
        shards = life.store.shards
        head = RoundHead(
            bucket=self.id,
            epoch=self.epoch,
            number=self.number,
            previous=self.hash,
            nonce="n",
            wall_ms=self.wall_ms,
            shards=shards,
            positions=[self.positions.get(shard, (0, 0)) for shard in range(shards)],
            runs=[run for run, _ in runs],
            ends_cut=ends_cut,
            begins_history=self.number == 1,
            body_bytes=sum(len(data) for _, data in runs),
        )
        blob = encode_round(head, [data for _, data in runs])
        self.hash = decode_round(blob).hash
        self.objects.put_new(round_name(self.number), blob)

    # -- what the writer of bases asks of an archive -------------------------------------------------------------------

    @property
    def bucket_id(self) -> str:
        """As the archive has it."""
        return self.id

    @property
    def history_begun_at(self) -> int:
        """The first round."""
        return 1

    @property
    def last_round(self) -> int:
        """The last one."""
        return self.number

    @property
    def noted_round(self) -> int:
        """The same: it needs no note."""
        return self.number

    async def archived_to(self, _positions: Sequence[LogPosition]) -> int:
        """Everything that is synced goes into a round."""
        assert self.life is not None
        return self.round(self.life)

    def round_of_file(self, shard: int, ordinal: int) -> int:
        """The round with the first byte of a file."""
        return self.begins[shard, ordinal]

    async def begin_anew(self, reason: str) -> None:
        """No round is missing here."""
        raise AssertionError(reason)

    async def note_base(self, _number: int) -> None:
        """Nothing is done."""

    async def real_base(self, life: Life) -> int:
        """Have the daemon's own code make a base. Return its number."""
        if self.writer is None or self.life is not life:
            self.life = life
            self.writer = BaseWriter(self, life.compactor, clock=life.clock, offload=InlineOffload(), interval_ms=1000)
            await self.writer.load()
        return await self.writer.take()

    # -- bases -------------------------------------------------------------------------------------------------------

    async def base(self, life: Life) -> int:
        """Put a base into the bucket. Return its number."""
        names, taken = await life.compactor.name_files(HOLD_MS)
        deleted = deleted_in(life)
        contents = {name: life.fs.read(path_of(name)) for name in names}
        self.round(life)
        snapshot = decode_snapshot(contents[f"meta/snapshot.{taken.number}.cbor"])
        files = [(shard, ordinal, self.begins[shard, ordinal]) for shard, ordinal in logs_in(names)]
        pack = PackBuilder(PackName(self.epoch, self.packs))
        self.packs += 1
        pages = self._pages(pack, snapshot, contents, deleted)
        fields = {key: value for key, value in msgspec.structs.asdict(snapshot).items() if key != "topics"}
        body = BaseBody(snapshot=fields, files=files, pages=pages)
        head = BaseHead(
            bucket=self.id,
            epoch=self.epoch,
            number=self.number,
            first_round=min(number for _, _, number in files),
            wall_ms=life.clock.now_ms(),
            shards=life.store.shards,
            body_bytes=0,
        )
        self.objects.put_new(pack_name(pack.name), pack.finished())
        self.objects.put_new(base_name(self.number), encode_base(head, body))
        return self.number

    def _pages(
        self,
        pack: PackBuilder,
        snapshot: Snapshot,
        contents: dict[str, bytes],
        deleted: dict[tuple[int, int], set[int]],
    ) -> list[tuple[int, BlobRef]]:
        parts = {decode_part(blob).id: blob for blob in snapshot.topics}
        manifests: set[int] = set()
        segments: dict[int, dict[int, dict[str, bytes]]] = {}
        trees: dict[int, list[LeafFileEntry]] = {}
        for name, content in contents.items():
            found = re.fullmatch(r"(?:cold:)?topics/([0-9a-f]{16})/(.*)", name)
            if found is None:
                continue
            topic_id = int(found[1], 16)
            segment, leaves = parse_segment_file(found[2]), parse_leaf_name(found[2])
            if leaves is not None:
                trees.setdefault(topic_id, []).append(LeafFileEntry(*leaves, pack.add(content)))
            elif segment is None:
                manifests.add(topic_id)
                parts[topic_id] = cbor2.loads(content)["manifest"]
            elif not segment[1].endswith(".cold"):
                segments.setdefault(topic_id, {}).setdefault(segment[0], {})[segment[1]] = content
        entries: dict[int, list[TopicEntry]] = {}
        for topic_id in sorted(parts.keys() | segments.keys()):
            blob = parts.get(topic_id)
            sealed = {}
            if blob is not None:
                sealed = {wire[0]: (bool(wire[5]), wire[1], wire[7]) for wire in decode_part(blob).segments}
            found_segments = [
                self._segment(
                    pack, topic_id, first, files, sealed.get(first, (True, 0, None)), deleted.get((topic_id, first))
                )
                for first, files in sorted(segments.get(topic_id, {}).items())
            ]
            part = pack.add(blob) if blob is not None and len(blob) >= LARGE_PART else blob
            entry = TopicEntry(topic_id, part, found_segments, topic_id in manifests)
            if topic_id in trees:
                assert blob is not None
                evidence = decode_part(blob).evidence
                assert evidence is not None
                entry.leaves = LeavesEntry(evidence[0], trees[topic_id])
            entries.setdefault(topic_id // PAGE_TOPICS, []).append(entry)
        return [(page, pack.add(encode_page(topics))) for page, topics in sorted(entries.items())]

    def _segment(
        self,
        pack: PackBuilder,
        topic_id: int,
        first: int,
        files: dict[str, bytes],
        known: tuple[bool, int, int | None],
        deleted: set[int] | None,
    ) -> SegmentEntry:
        sealed, n, salt = known
        files, gone = unflagged(files, first, n)
        gone |= deleted or set()
        bitmap = bytearray((n + 7) // 8)
        for seq in gone:
            if seq - first < n:
                bitmap[(seq - first) >> 3] |= 1 << ((seq - first) & 7)
        ref = pack.add(bytes(bitmap)) if any(bitmap) else None
        if not sealed:
            data = files["data"]
            pieces = [pack.add(data[at : at + PIECE]) for at in range(0, len(data), PIECE)]
            return SegmentEntry(first, salt or 0, pieces=pieces, deleted=ref)
        entry = SegmentEntry(first, salt or 0, self.epoch, deleted=ref)
        kinds: tuple[SegmentKind, ...] = ("data", "idx", "tags")
        for kind in kinds:
            if kind not in files:
                continue
            name = segment_name(SegmentName(topic_id, first, self.epoch, salt or 0), kind)
            try:
                self.objects.put_new(name, files[kind])
            except ObjectExists:
                files[kind] = self.objects.objects[name]
            data = files[kind]
            header = decode_pack_header(data)
            length = header.length if header is not None else 0
            setattr(entry, kind, SealedFile(len(data), hashlib.sha256(data).digest(), length))
        return entry


def path_of(name: str) -> str:
    """The path of a file that a hold has named."""
    return f"{COLD}/{name[5:]}" if name.startswith("cold:") else f"{ROOT}/{name}"


def logs_in(names: list[str]) -> list[tuple[int, int]]:
    """Shard and ordinal of the files of the log among these."""
    found = []
    for name in names:
        match = re.fullmatch(r"wal/(?:shard-(\d+)/)?(wal-.*)", name)
        if match is not None:
            ordinal = parse_wal_name(match[2])
            assert ordinal is not None
            found.append((int(match[1] or 0), ordinal))
    return sorted(found)


def deleted_in(life: Life) -> dict[tuple[int, int], set[int]]:
    """By topic id and first seq of a segment: the records that memory knows to be deleted."""
    found: dict[tuple[int, int], set[int]] = {}
    for topic in life.engine.registry.by_id.values():
        for span in topic.log.stored.all():
            segment = span.segment
            seqs = found.setdefault((topic.id, segment.first), set())  # type: ignore[attr-defined]
            seqs.update(span.unflagged or ())
            if span.loaded:
                seqs.update(span.first + i for i, state in enumerate(span.dead) if state == DELETED)
    return found


def unflagged(files: dict[str, bytes], first: int, n: int) -> tuple[dict[str, bytes], set[int]]:
    """The files of a segment without the flags of deleted records, and the seqs of these."""
    if "idx" not in files:
        return files, set()
    index = decode_index(files["idx"])
    assert not index.bad
    header = decode_pack_header(files["data"])
    content = unpacked(files["data"], header.length) if header is not None else files["data"]
    data, flags, gone = bytearray(content), bytearray(index.flags), set()
    for i, flag in enumerate(index.flags):
        if flag & IDX_DELETED and i < n:
            gone.add(first + i)
            if index.frame_len[i]:
                flags[i] &= ~IDX_DELETED
                data[delete_flag_offset(index.offset[i], index.frame_len[i])] = LIVE_FLAG
    entries = encode_index(index.offset, index.frame_len, index.ts, bytes(flags))
    whole = packed_bytes(bytes(data), header.generation, first) if header is not None else bytes(data)
    return {**files, "data": whole, "idx": entries}, gone


def cut_copy(fs: SimFs, positions: dict[int, Position]) -> SimFs:
    """The disk as of now, as a copy, without what the log has behind these positions."""
    copy = fs.after_process_kill()
    shards = len(positions)
    for shard, (ordinal, offset) in positions.items():
        directory = f"{ROOT}/wal" if shards == 1 else f"{ROOT}/wal/shard-{shard:02d}"
        for name in copy.listdir(directory):
            at = parse_wal_name(name)
            if at is not None and at > ordinal:
                copy.unlink(f"{directory}/{name}")
            elif at == ordinal:
                with copy.open(f"{directory}/{name}") as file:
                    size = file.size()
                    file.truncate(offset)
                    file.truncate(max(size, offset))
    if copy.exists(f"{ROOT}/meta/clock"):
        copy.unlink(f"{ROOT}/meta/clock")  # no tool that makes copies copies this file
    copy.open(f"{ROOT}/{MARK}", create=True).close()
    copy.settle()
    return copy
