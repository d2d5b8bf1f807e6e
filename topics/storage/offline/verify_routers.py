"""Verifies the marks of routers and of commits of stages: Forwarded frames, each by itself and one after another; and
the frames that copies point to, as long as no checkpoint has put the copies into segments of their own
(`docs/spec/semantics.md` section 5, `docs/spec/crash.md` 16 to 20 and 23).

A recipe counts if a start would replay it: its frame is in a whole batch behind the newest part of its topic. The
frames that it names must exist, byte for byte, in the WAL or in a segment. Two cases are no damage. Bytes behind the
end of the source's log, or where a start has cut it, were never synced, and their copies are announced as `lost`. Bytes
of copies that a hole has replaced are not needed. Recipes are read again when all logs have been read; until then only
their places are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

from topics.evidence.record_leaf import LEAF_BYTES, record_leaf
from topics.log.copies import MAX_HOPS, CopyKind, each_kind, stamped
from topics.log.span import FLAG_NODE, FLAG_ORIGIN, FLAG_TAG
from topics.storage.files.datadir import DataDir, wal_path
from topics.storage.files.fs import Fs
from topics.storage.offline.findings import DAMAGE, NOTE, Finding, Severity, bounded
from topics.storage.segments.copy_frames import decode_forwarded, decode_recipe, is_staged, read_recipe
from topics.storage.segments.segment_reader import SegmentTiers
from topics.storage.segments.stand_ins import StandIns, stand_in_id
from topics.storage.wal import frames
from topics.storage.wal.frames import Frame, OpenedRecord
from topics.storage.wal.wal_files import LogPosition, Place, WalFiles

_COLUMNS: Final = ("kinds", "files", "extents", "lens", "sizes", "flags")
_U32: Final = 2**32


# ----------------------------------------------------------------- a Forwarded frame by itself


def copies_in(payload: Mapping[str, Any]) -> int:
    """Return how many seqs a Forwarded frame takes by itself, not counting copies that are Appends in its batch."""
    return len(payload["flags"]) if "kinds" in payload else int(bool(payload.get("trim")))


def contradiction(frame: Frame, payload: Mapping[str, Any]) -> str | None:
    """Return what in a Forwarded frame contradicts the rest of it, None for nothing. May raise any exception if a field
    is missing."""
    if is_staged(payload):
        return _staged_contradiction(frame, payload)
    forwarded = decode_forwarded(payload)
    first, last, copies = forwarded.first, forwarded.last, forwarded.copies
    if not 1 <= first <= last:
        return f"it is about seqs {first} to {last}"
    if not 0 <= copies <= min(forwarded.total, last - first + 1):
        return f"{copies} copies of {last - first + 1} records, and {forwarded.total} in all"
    chosen = _chosen(payload, first, last)
    if isinstance(chosen, str):
        return chosen
    if copies and len(chosen) != copies:
        return f"{copies} copies, and {len(chosen)} seqs were chosen"
    if forwarded.trims and (copies or "kinds" in payload):
        return "a trim that makes copies"
    given = [name for name in _COLUMNS if name in payload]
    if given and len(given) != len(_COLUMNS):
        return f"a recipe without {next(name for name in _COLUMNS if name not in payload)}"
    if bool(frame.seq) and not given and not forwarded.trims:
        return f"it takes seq {frame.seq} and makes nothing"
    if given and not frame.seq:
        return "a recipe without a seq"
    return _recipe_contradiction(frame, payload, chosen) if given else None


def _staged_contradiction(frame: Frame, payload: Mapping[str, Any]) -> str | None:
    """The same for a frame of a commit of stages."""
    first, last, count = payload["from"], payload["to"], payload["count"]
    if not 1 <= first <= last or count != last - first + 1:
        return f"it is about {count} records with seqs {first} to {last} of a stage"
    missing = next((name for name in _COLUMNS if name not in payload), None)
    if missing is not None:
        return f"a recipe without {missing}"
    if not frame.seq:
        return "a recipe without a seq"
    return _recipe_contradiction(frame, payload, range(first, last + 1))


def _chosen(payload: Mapping[str, Any], first: int, last: int) -> Sequence[int] | str:
    """Return the seqs of the source that became copies, or the problem of the mask."""
    if "mask" not in payload:
        return range(first, last + 1) if payload["count"] else ()
    base, bits = payload["mask"]
    value = int.from_bytes(bits, "little")
    chosen = [base + i for i in range(value.bit_length()) if value >> i & 1]
    if not chosen or chosen[0] != base or not first <= base <= chosen[-1] <= last:
        return f"its mask is not about seqs {first} to {last}"
    return chosen


def _recipe_contradiction(frame: Frame, payload: Mapping[str, Any], chosen: Sequence[int]) -> str | None:
    kinds, files, extents, flags = payload["kinds"], payload["files"], payload["extents"], payload["flags"]
    counts = {
        "count": payload["count"],
        "kinds": sum(kind[0] for kind in kinds),
        "extents": sum(extent[1] for extent in extents),
        "lens": len(payload["lens"]) / 4,
        "sizes": len(payload["sizes"]) / 4,
        "flags": len(flags),
    }
    if len(set(counts.values())) > 1:
        found = ", ".join(f"{n:g} by {name}" for name, n in counts.items())
        return f"its recipe contradicts itself: copies are {found}"
    if {extent[0] for extent in extents} != set(range(len(files))) or not all(map(_is_place, files)):
        return f"its extents are not those of its files, {files}"
    recipe = decode_recipe(payload, lambda _: 1)
    assert recipe is not None
    if min(recipe.origin_seqs) < 1 or min(recipe.frame_lens) < frames.MIN_FRAME_LEN - frames.CHECKSUM_BYTES:
        return "it names frames that cannot be"
    if any(at + size >= _U32 for at, size in zip(recipe.offsets, recipe.frame_lens, strict=True)):
        return "it names frames behind the end of any file"
    staged = is_staged(payload)
    for i, (kind, flag) in enumerate(zip(each_kind(recipe.kinds), flags, strict=True)):
        hops_hold = kind.hops == 0 if staged else 1 <= kind.hops <= MAX_HOPS
        if not hops_hold or kind.topic_id == frame.topic_id:
            return f"seq {frame.seq + i} is a copy of topic {kind.topic_id} over {kind.hops} routers"
        dropped = (FLAG_NODE if kind.changes.drop_node else 0) | (FLAG_TAG if kind.changes.drop_tag else 0)
        if flag & dropped or flag & ~(FLAG_NODE | FLAG_TAG) != (0 if staged else FLAG_ORIGIN):
            return f"seq {frame.seq + i}: flags {flag:#04x}"
        if kind.hops <= 1 and (kind.topic_id, recipe.origin_seqs[i]) != (payload["source"], chosen[i]):
            origin = f"seq {recipe.origin_seqs[i]} of topic {kind.topic_id}"
            return f"seq {frame.seq + i} is a copy of {origin}, and seq {chosen[i]} of the source was chosen"
    return None


def _is_place(place: Any) -> bool:
    kind, owner, first = place
    return kind in ("wal", "segment") and type(owner) is type(first) is int and owner >= 0 <= first


# ----------------------------------------------------------------- one after another


class RouterCursors:
    """The positions of routers according to the frames of one shard, one after another. Each frame must continue where
    the last one ended."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str, int], tuple[int, int] | None] = {}
        """Cursor and copies made, by dest, router and source; None if the router was deleted."""

    def forget(self) -> None:
        """Forget the positions, because frames are missing: the next ones may continue anywhere."""
        self._known.clear()

    def create(self, topic_id: int, router: Sequence[Any]) -> None:
        """Apply a RouterCreate frame; that of a known router changes nothing here."""
        name, source, cursor, made, _ = router
        if self._known.get((topic_id, name, source), ()) is None:
            self._known[topic_id, name, source] = cursor, made

    def delete(self, topic_id: int, name: str) -> None:
        """Apply a RouterDelete frame. Batches that were in flight follow it."""
        for key in list(self._known):
            if key[:2] == (topic_id, name):
                self._known[key] = None

    def forward(self, topic_id: int, payload: Mapping[str, Any]) -> str | None:
        """Apply a Forwarded frame. Return the problem of its beginning, if any. A commit of stages may begin
        anywhere."""
        if is_staged(payload):
            return None
        forwarded = decode_forwarded(payload)
        key = topic_id, forwarded.router, forwarded.source
        before = self._known.get(key, ())
        if before is None:
            return None
        self._known[key] = forwarded.last, forwarded.total
        if before and before[0] + 1 != forwarded.first:
            return f"router {forwarded.router!r} goes on at seq {forwarded.first}, and it was at {before[0]}"
        if before and before[1] + forwarded.copies != forwarded.total:
            return f"router {forwarded.router!r} has made {forwarded.total} copies, after {before[1]}"
        return None


# ----------------------------------------------------------------- the frames that copies point to


class RecipePlace(NamedTuple):
    """The place of a Forwarded frame with a recipe."""

    path: str
    position: LogPosition
    size: int
    topic_id: int
    seq: int
    salt: int | None
    """The salt of the file."""


class CopyFacts:
    """The facts from the logs of all shards about the frames that copies point to."""

    def __init__(self) -> None:
        self.recipes: list[RecipePlace] = []
        """The recipes that a start would replay."""
        self.holes: dict[int, list[tuple[int, int]]] = {}
        """Seqs below its head that an earlier start has given up, by topic."""
        self.ends: dict[int, LogPosition] = {}
        """Where the log ends, by shard."""
        self.opened: dict[tuple[int, int], int] = {}
        """Where the first start noted in a file went on writing, by shard and ordinal of the file."""
        self.damaged: set[tuple[int, int]] = set()
        """Files with bad bytes, by shard and ordinal."""

    def is_hole(self, topic_id: int, seq: int) -> bool:
        """Return True if a copy was given up."""
        return any(first <= seq <= last for first, last in self.holes.get(topic_id, ()))


class CopyCheck:
    """Reads recipes and the frames that they name. `needed` are the topics with segments that they name."""

    def __init__(
        self,
        fs: Fs,
        tiers: SegmentTiers,
        roots: Sequence[DataDir],
        directories: Mapping[int, str],
        files: WalFiles,
        facts: CopyFacts,
    ) -> None:
        self._fs = fs
        self._tiers = tiers
        self._roots = roots
        """The data directory, and the cold one if there is one."""
        self._directories = directories
        """The directories of the logs, by shard."""
        self._files = files
        self._facts = facts
        self._stand_ins = StandIns(tiers.hot, files)
        self.needed: set[int] = set()

    def findings(self, at: RecipePlace, topic: str) -> Iterator[Finding]:
        """Yield the problems of the bytes of one frame's copies. Raises OSError if the disk does not answer."""
        with self._fs.open(at.path, read_only=True) as handle:
            window = handle.pread(at.size, at.position.offset)
        scan = frames.scan_window(window, at.position.offset, file_end=at.position.offset + at.size, salt=at.salt)
        if not scan.rows:
            return  # the bytes were good a moment ago
        payload = frames.control_payload(window, at.position.offset, scan.frames[0])
        recipe = decode_recipe(payload, self._files.file_of)
        assert recipe is not None
        places: list[Place] = []
        for file, count, _, _ in payload["extents"]:
            kind, owner, first = payload["files"][file]
            places += [(kind, owner, first)] * count
        self.needed.update(owner for kind, owner, _ in places if kind == "segment")
        problems: list[tuple[int, Place, str, Severity]] = []
        leaves, ts = payload.get("leaves"), scan.frames[0].ts
        opened = read_recipe(self._fs, self._tiers, self._files, recipe)
        if self._stand_ins.use(recipe, at.topic_id, at.seq, opened):
            self.needed.add(stand_in_id(at.topic_id))
            opened = read_recipe(self._fs, self._tiers, self._files, recipe)
        for i, (record, kind) in enumerate(zip(opened, each_kind(recipe.kinds), strict=True)):
            if self._facts.is_hole(at.topic_id, at.seq + i):
                continue
            origin_seq, offset, size = recipe.origin_seqs[i], recipe.offsets[i], recipe.frame_lens[i]
            if record is None or record.origin[:2] != (kind.topic_id, origin_seq):
                problems.append((i, places[i], *self._missing(places[i], offset, size)))
            elif (recipe.sizes[i], recipe.flags[i]) != _look(record, kind, origin_seq):
                problems.append((i, places[i], "and that frame is not what was copied", "damage"))
            elif leaves is not None and leaves[i * LEAF_BYTES : (i + 1) * LEAF_BYTES] != _leaf(at, i, record, kind, ts):
                problems.append((i, places[i], "and that record was rewritten: its leaf is another one", "damage"))
        for severity in (DAMAGE, NOTE):
            wanted = [problem for problem in problems if problem[3] == severity]
            found = [(at.position.offset, text) for text in self._sentences(at, topic, recipe.offsets, wanted)]
            yield from bounded(at.path, found, severity)

    def _missing(self, place: Place, offset: int, size: int) -> tuple[str, Severity]:
        """Return why a frame is not where a recipe says it is."""
        kind, owner, first = place
        if kind == "segment":
            if self._segment_path(owner, first) is not None:
                return "and no such frame is there", "damage"
            without = "" if self._tiers.cold is not None else ": no cold directory is given"
            return f"and that file is missing{without}", "damage"
        file = owner, first
        if LogPosition(first, offset + size) > self._facts.ends.get(owner, LogPosition(-1, 0)):
            return "behind the end of that log: the next start announces it as lost", NOTE
        if not self._files.file_of(place):
            return "and that file is missing", "damage"
        if file not in self._facts.damaged and offset >= self._facts.opened.get(file, _U32):
            return "where a start has cut the log: the next one announces it as lost", NOTE
        return "and no such frame is there", "damage"

    def _sentences(
        self,
        at: RecipePlace,
        topic: str,
        offsets: Sequence[int],
        problems: Sequence[tuple[int, Place, str, Severity]],
    ) -> Iterator[str]:
        """Yield a sentence for each run of copies with the same problem."""
        number = {problem[0]: problem[0] - n for n, problem in enumerate(problems)}
        for (_, place, why), group in groupby(problems, key=lambda one: (number[one[0]], one[1], one[2])):
            run = list(group)
            first, last = at.seq + run[0][0], at.seq + run[-1][0]
            what = f"seq {first} of topic {topic!r} is a copy of the frame"
            if last > first:
                what = f"seqs {first} to {last} of topic {topic!r} are copies of the frames"
            yield f"{what} at {offsets[run[0][0]]} of {self._path(place)}, {why}"

    def _path(self, place: Place) -> str:
        kind, owner, first = place
        if kind == "wal":
            return wal_path(self._directories.get(owner, f"shard {owner}"), first)
        return self._segment_path(owner, first) or self._roots[0].segment_path(owner, first, "data")

    def _segment_path(self, topic_id: int, first: int) -> str | None:
        """Return the path of a segment's `.data`, None if there is none."""
        paths = (root.segment_path(topic_id, first, "data") for root in self._roots)
        return next(filter(self._fs.exists, paths), None)


def _leaf(at: RecipePlace, i: int, record: OpenedRecord, kind: CopyKind, ts: int) -> bytes:
    """Return the leaf of copy `i` of a recipe, in the Merkle tree of the dest."""
    changes = kind.changes
    return record_leaf(
        at.topic_id,
        at.seq + i,
        ts,
        b"" if changes.drop_node else record.node,
        b"" if changes.drop_tag else record.tag,
        stamped(record.meta, kind.topic_id, record.origin.seq, changes.stamp),
        record.data,
    )


def _look(record: OpenedRecord, kind: CopyKind, origin_seq: int) -> tuple[int, int]:
    """Return bytes of data and meta, and flags, of a copy of this record."""
    changes = kind.changes
    flags = FLAG_ORIGIN if kind.hops else 0  # committed stage records have no origin
    flags |= FLAG_TAG if record.tag and not changes.drop_tag else 0
    flags |= FLAG_NODE if record.node and not changes.drop_node else 0
    return len(stamped(record.meta, kind.topic_id, origin_seq, changes.stamp)) + len(record.data), flags
