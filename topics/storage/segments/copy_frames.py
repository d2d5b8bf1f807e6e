"""Copies on disk: the Forwarded frame, and making a copy from the frame that it points to (`docs/spec/semantics.md`
section 5, `docs/spec/crash.md` 16 to 19).

A Forwarded frame has a router's cursor and the *recipe* of its copies: the seqs of the source that were examined, those
that became copies, and for each copy the place and length of its bytes, and its origin. So replay needs only the bytes
of the source, and those only to read the copies. `docs/storage.md` lists the fields of the frame.

Bytes are named by place: a WAL file (shard and ordinal) or a segment (topic and first seq), and an offset. The origin,
which copies of copies pass on, proves that the frame there is the right one.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from operator import add
from typing import Any, Final, NamedTuple

from topics.evidence.record_leaf import LEAF_BYTES
from topics.log.copies import CopyChanges, CopyKind, CopyRun, run_of, stamped
from topics.log.dumped_values import from_little_endian, little_endian
from topics.log.frame_ranges import FrameRange
from topics.log.shared_reads import SharedRead, shared_reads
from topics.storage.files.datadir import segment_name
from topics.storage.files.file_header import FILE_HEADER_BYTES
from topics.storage.files.fs import Fs
from topics.storage.segments.segment_format import open_records
from topics.storage.segments.segment_reader import SegmentTiers
from topics.storage.segments.segment_scan import layout_of
from topics.storage.segments.segment_store import SegmentStore
from topics.storage.wal.frames import FrameSeeds, OpenedRecord, StoredRecord, are_appends, open_append
from topics.storage.wal.wal_files import Place, WalFiles

READ_BYTES: Final = 1 << 20
"""The longest read that frames share."""

DROP_NODE: Final = 1
DROP_TAG: Final = 2


class CopyRecipe(NamedTuple):
    """The copies of one Forwarded frame, column by column. `flags` are those of the index without the derived bit;
    `sizes` are the bytes of data + meta of the copies, `frame_lens` those of the frames on disk."""

    kinds: list[tuple[int, CopyKind]]
    origin_seqs: Sequence[int]
    files: array[int]
    offsets: array[int]
    frame_lens: array[int]
    sizes: array[int]
    flags: bytes


class ForwardedFrame(NamedTuple):
    """A Forwarded frame without the recipe.

    The router has examined the source's seqs `first` to `last` and made `copies` copies. `chosen` are the seqs that
    became copies. `trims`: a hole of one seq stands for records that the source has lost.
    """

    router: str
    source: int
    first: int
    last: int
    copies: int
    total: int = 0
    """How many copies the router has made since its creation, these included."""
    chosen: Sequence[int] = ()
    trims: bool = False
    leaves: bytes | None = None
    """The leaves of the copies in the Merkle tree of the dest, one after the other, if it has one and the frame a
    recipe."""


def encode_forwarded(
    forwarded: ForwardedFrame, recipe: CopyRecipe | None, place_of: Callable[[int], Place] | None
) -> dict[str, Any]:
    """Return the payload of a Forwarded frame. Without a recipe the copies are in the same batch, or in no file at
    all."""
    payload: dict[str, Any] = {
        "router": forwarded.router,
        "source": forwarded.source,
        "from": forwarded.first,
        "to": forwarded.last,
        "count": forwarded.copies,
        "total": forwarded.total,
    }
    if forwarded.trims:
        payload["trim"] = True
    chosen = forwarded.chosen
    if chosen and len(chosen) != forwarded.last - forwarded.first + 1:
        payload["mask"] = [chosen[0], _bitmap(chosen)]
    if recipe is not None:
        assert place_of is not None
        payload.update(_encode_recipe(recipe, place_of))
        if forwarded.leaves is not None:
            payload["leaves"] = forwarded.leaves
    return payload


def encode_staged(
    stage_id: int, recipe: CopyRecipe, place_of: Callable[[int], Place], leaves: bytes | None = None
) -> dict[str, Any]:
    """Return the payload of a Forwarded frame of a commit of stages, which no router has made. `leaves` as in
    `ForwardedFrame`."""
    first, n = recipe.origin_seqs[0], len(recipe.flags)
    payload = {"source": stage_id, "from": first, "to": first + n - 1, "count": n, **_encode_recipe(recipe, place_of)}
    if leaves is not None:
        payload["leaves"] = leaves
    return payload


def leaves_in(payload: Mapping[str, Any], count: int) -> bytes:
    """Return the leaves of so many copies. Raises ValueError if the payload does not have them."""
    leaves = payload.get("leaves")
    if not isinstance(leaves, bytes) or len(leaves) != count * LEAF_BYTES:
        raise ValueError("a Forwarded frame into a topic with evidence lacks the leaves of its copies")
    return leaves


def is_staged(payload: Mapping[str, Any]) -> bool:
    """Return True if a Forwarded frame is part of a commit of stages. Its records are first appended in the target, so
    their flags have no origin."""
    return "router" not in payload


def _encode_recipe(recipe: CopyRecipe, place_of: Callable[[int], Place]) -> dict[str, Any]:
    files = list(dict.fromkeys(recipe.files))
    return {
        "kinds": [
            [
                count,
                kind.topic_id,
                kind.hops,
                (DROP_NODE if kind.changes.drop_node else 0) | (DROP_TAG if kind.changes.drop_tag else 0),
                kind.changes.stamp,
            ]
            for count, kind in recipe.kinds
        ],
        "files": [list(place_of(file)) for file in files],
        "extents": [[files.index(file), *rest] for file, *rest in _extents(recipe)],
        "lens": little_endian(recipe.frame_lens),
        "sizes": little_endian(recipe.sizes),
        "flags": recipe.flags,
    }


def _bitmap(chosen: Sequence[int]) -> bytes:
    """Return a bit for each seq from the first chosen one on."""
    base = chosen[0]
    bits = bytearray((chosen[-1] - base) // 8 + 1)
    for seq in chosen:
        bits[(seq - base) >> 3] |= 1 << ((seq - base) & 7)
    return bytes(bits)


def _extents(recipe: CopyRecipe) -> list[tuple[int, int, int, int]]:
    """Return runs of frames that follow one another in a file and whose origins have consecutive seqs: file, count,
    first origin seq, offset."""
    files, seqs, offsets = recipe.files, recipe.origin_seqs, recipe.offsets
    n = len(files)
    ends = map(add, offsets, recipe.frame_lens)
    begins = {0, *(i for i, (at, end) in enumerate(zip(offsets[1:], ends, strict=False), 1) if at != end)}
    if files.count(files[0]) != n:
        begins.update(i for i, (a, b) in enumerate(pairwise(files), 1) if a != b)
    if not isinstance(seqs, range):
        begins.update(i for i, (a, b) in enumerate(pairwise(seqs), 1) if b != a + 1)
    return [(files[a], b - a, seqs[a], offsets[a]) for a, b in pairwise([*sorted(begins), n])]


def decode_forwarded(payload: Mapping[str, Any]) -> ForwardedFrame:
    """Return the frame that `encode_forwarded` was given, without `chosen`."""
    return ForwardedFrame(
        payload["router"],
        payload["source"],
        payload["from"],
        payload["to"],
        payload["count"],
        payload["total"],
        trims=bool(payload.get("trim")),
    )


def decode_chosen(payload: Mapping[str, Any]) -> Sequence[int]:
    """Return the seqs of the source that became the copies of a recipe, in the order of the copies. Raises any
    exception for a malformed payload."""
    if is_staged(payload) or "mask" not in payload:
        return range(payload["from"], payload["from"] + payload["count"])
    base, bits = payload["mask"]
    value = int.from_bytes(bits, "little")
    return array("Q", [base + i for i in range(value.bit_length()) if value >> i & 1])


def decode_recipe(payload: Mapping[str, Any], file_of: Callable[[Place], int]) -> CopyRecipe | None:
    """Return the recipe of a payload, None if it has none. Raises ValueError if it contradicts itself."""
    if "kinds" not in payload:
        return None
    kinds = [
        (count, CopyKind(topic_id, hops, CopyChanges(bool(options & DROP_NODE), bool(options & DROP_TAG), stamp)))
        for count, topic_id, hops, options, stamp in payload["kinds"]
    ]
    if not all(isinstance(kind.changes.stamp, str | None) for _, kind in kinds):
        raise ValueError("the stamp of a copy is not a name")
    lens = from_little_endian("I", payload["lens"])
    sizes = from_little_endian("I", payload["sizes"])
    flags = payload["flags"]
    if not isinstance(flags, bytes):  # bytes() would make as many zeros as a number says
        raise ValueError("the flags of a recipe are not bytes")
    ids = [file_of((kind, a, b)) for kind, a, b in payload["files"]]
    files, offsets = array("I"), array("I")
    seqs: list[int] = []
    for file, count, seq, offset in payload["extents"]:
        for i in range(len(files), len(files) + count):
            files.append(ids[file])
            offsets.append(offset)
            offset += lens[i]
        seqs.extend(range(seq, seq + count))
    if not len(files) == len(lens) == len(sizes) == len(flags) == sum(count for count, _ in kinds):
        raise ValueError("the recipe of a Forwarded frame contradicts itself")
    return CopyRecipe(kinds, seqs, files, offsets, lens, sizes, flags)


def read_window(fs: Fs, tiers: SegmentTiers, files: WalFiles, file: int, offset: int, length: int) -> bytes:
    """Return bytes of a file that copies point to. Raises FileNotFoundError if the file is missing. Blocking."""
    kind, _, _ = files.place_of(file)
    if kind == "segment":
        try:
            return _read_segment(tiers.hot, files, file, offset, length)
        except FileNotFoundError:
            if tiers.cold is None:
                raise
            return _read_segment(tiers.cold, files, file, offset, length)
    with fs.open(files.get(file).path, read_only=True) as handle:
        return handle.pread(length, offset)


def _is_cold(tiers: SegmentTiers, files: WalFiles, file: int) -> bool:
    """Return True if the file is a segment whose `.data` is not in the data directory."""
    kind, owner, first = files.place_of(file)
    return kind == "segment" and not tiers.hot.exists(owner, segment_name(first, "data"))


def _read_segment(store: SegmentStore, files: WalFiles, file: int, offset: int, length: int) -> bytes:
    """Return bytes of a `.data`, and note its salt in `files`."""
    _, owner, first = files.place_of(file)
    name = segment_name(first, "data")
    head = store.read_range(owner, name, 0, FILE_HEADER_BYTES)
    files.salts[file] = layout_of(head, first, files.salts.get(file)).salt
    return store.read_range(owner, name, offset, length)


def open_frames(
    files: WalFiles, file: int, offset: int, window: bytes, starts: Sequence[int], sizes: Sequence[int]
) -> list[OpenedRecord | None]:
    """Decode the frames of `sizes` bytes at these indices of a window, which `read_window` has read at `offset` of a
    file; None for each that does not verify."""
    kind, owner, _ = files.place_of(file)
    if kind == "segment":
        return open_records(window, starts, sizes, owner, salt=files.salts.get(file), base=offset)
    seeds = FrameSeeds(files.get(file).head.salt, offset)
    return [open_append(window, at, size, seeds) for at, size in zip(starts, sizes, strict=True)]


def record_of_copy(opened: OpenedRecord | None, run: CopyRun, seq: int, ts: int) -> StoredRecord | None:
    """Return the copy with this seq and time, as its readers see it; None if the copy was not made from this frame."""
    if opened is None:
        return None
    origin, changes = run.origin(seq), run.kind(seq).changes
    if opened.origin.topic_id != origin.topic_id or opened.origin.seq != origin.seq:
        return None
    return StoredRecord(
        seq,
        ts,
        b"" if changes.drop_node else opened.node,
        b"" if changes.drop_tag else opened.tag,
        stamped(opened.meta, origin.topic_id, origin.seq, changes.stamp),
        opened.data,
    )


def read_copies(
    fs: Fs, tiers: SegmentTiers, files: WalFiles, wanted: FrameRange, runs: Sequence[CopyRun], times: Sequence[int]
) -> tuple[list[StoredRecord], list[int]]:
    """Return the copies of one range of frames, and the seqs of those that do not verify. Raises FileNotFoundError or
    KeyError if the file is missing. Blocking."""
    window = read_window(fs, tiers, files, wanted.file, wanted.offset, wanted.length)
    records, damaged = [], []
    frames = open_frames(files, wanted.file, wanted.offset, window, wanted.starts, wanted.frame_lens)
    for seq, ts, opened in zip(wanted.seqs, times, frames, strict=True):
        record = record_of_copy(opened, run_of(runs, seq), seq, ts)
        if record is None:
            damaged.append(seq)
        else:
            records.append(record)
    return records, damaged


def read_recipe(
    fs: Fs, tiers: SegmentTiers, files: WalFiles, recipe: CopyRecipe, away: set[int] | None = None
) -> list[OpenedRecord | None]:
    """Return the frames that copies point to; None for each that is missing. Blocking.

    `away` gets the indexes of those in segments that cannot be read now because the cold store does not answer; without
    it that is an OSError.
    """
    opened: list[OpenedRecord | None] = []
    for read, window in _windows(fs, tiers, files, recipe, away):
        sizes = recipe.frame_lens[read.first : read.end]
        if window is None:
            opened += [None] * len(sizes)
        else:
            starts = read.starts(recipe.offsets)
            opened += open_frames(files, recipe.files[read.first], read.offset, window, starts, sizes)
    return opened


def holds(fs: Fs, tiers: SegmentTiers, files: WalFiles, recipe: CopyRecipe) -> bool:
    """Return True if every frame that these copies point to exists and is an Append of their origin. Blocking. Faster
    than `read_recipe`, but may return False although `read_recipe` finds the frames."""
    if len(recipe.kinds) != 1 or any(not file or files.place_of(file)[0] != "wal" for file in set(recipe.files)):
        return False
    topic_id = recipe.kinds[0][1].topic_id
    for read, window in _windows(fs, tiers, files, recipe):
        if window is None:
            return False
        copies = slice(read.first, read.end)
        seeds = FrameSeeds(files.get(recipe.files[read.first]).head.salt, read.offset)
        starts, sizes = read.starts(recipe.offsets), recipe.frame_lens[copies]
        if not are_appends(window, starts, sizes, topic_id, recipe.origin_seqs[copies], seeds):
            return False
    return True


def _windows(
    fs: Fs, tiers: SegmentTiers, files: WalFiles, recipe: CopyRecipe, away: set[int] | None = None
) -> Iterator[tuple[SharedRead, bytes | None]]:
    """Yield the reads that fetch the frames of these copies, each with the bytes that were read; None if the file is
    missing.

    `away` as in `read_recipe`.
    """
    for read in shared_reads(recipe.files, recipe.offsets, recipe.frame_lens, max_bytes=READ_BYTES):
        file = recipe.files[read.first]
        window: bytes | None = None
        if file:
            try:
                window = read_window(fs, tiers, files, file, read.offset, read.length)
            except FileNotFoundError:
                pass
            except OSError:
                if away is None or not _is_cold(tiers, files, file):
                    raise
                away.update(range(read.first, read.end))
        yield read, window
