"""Copies and routers in replay (`docs/spec/crash.md` 16 to 20).

Responsible for Forwarded frames, for origins, and for the state of routers after the log has been read. Replay first
builds the copies without their bytes. When the ends of all shards are known, `lost_copies` finds the copies whose bytes
are missing.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from topics.evidence.merkle import Leaves
from topics.log.copies import PLAIN, CopyKind, CopyTable, Origin, each_kind
from topics.log.span import FLAG_DERIVED
from topics.routing.router_state import kept_origins
from topics.storage.files.fs import Fs
from topics.storage.recovery.recovered_state import ColumnLoader, RecoveredShard, RecoveredTopic
from topics.storage.segments.copy_frames import (
    CopyRecipe,
    decode_forwarded,
    decode_recipe,
    holds,
    is_staged,
    leaves_in,
    read_recipe,
)
from topics.storage.segments.stand_ins import StandIns, missing_in
from topics.storage.wal.frames import HAS_ORIGIN, HAS_TAG, Frame
from topics.storage.wal.wal_files import WalFiles
from topics.telemetry.logs import get_logger

log = get_logger(__name__)


def note_origins(topic: RecoveredTopic, first: int, origins: Sequence[Origin | None]) -> None:
    """Note the origins of records whose seqs begin at `first`; None for a record that was first appended in the
    topic."""
    for seq, origin in enumerate(origins, first):
        if origin is not None:
            topic.copies = topic.copies or CopyTable()
            topic.copies.add(seq, [(1, CopyKind(origin.topic_id, origin.hops, PLAIN))], [origin.seq])
            if topic.origins is not None:
                topic.origins.add(origin.topic_id, origin.seq)


def keep_origins(topic: RecoveredTopic) -> None:
    """Keep the set of taken origins if an `exactly_once` router leads into the topic (`docs/spec/crash.md` 19)."""
    topic.origins = kept_origins(topic.origins, topic.incoming.values())


class CopyReplay:
    """Applies Forwarded frames, and corrects the routers at the end. Blocking."""

    def __init__(self, fs: Fs, files: WalFiles, columns: ColumnLoader) -> None:
        self._fs = fs
        self._files = files
        self._columns = columns
        self._stand_ins = StandIns(columns.tiers.hot, files)
        self.reached: dict[int, int] = {}
        """The highest seq that any router has copied or skipped, by source."""

    def apply(self, topic: RecoveredTopic, shard: RecoveredShard, frame: Frame, payload: dict[str, Any]) -> None:
        """Apply a Forwarded frame: a router's step, or a commit of stages.

        Raises OSError if the disk does not answer, and any exception for a malformed payload.
        """
        trims = not is_staged(payload) and self._move_router(topic, payload)
        if topic.config.durability == "ephemeral" or not frame.seq:
            return
        log_ = topic.log
        recipe = decode_recipe(payload, self._files.file_of)
        if recipe is None and not trims:
            return  # the copies are in the batch
        if frame.seq > log_.head_seq + 1:
            log.error("seqs_missing", topic=topic.name, first=log_.head_seq + 1, last=frame.seq - 1, forwarded=True)
            self._columns.add_hole(topic, log_.head_seq + 1, frame.seq - 1, "corrupt")
        if frame.seq <= log_.head_seq:
            return
        shard.last_seqs[topic.id] = frame.seq + (len(recipe.flags) if recipe is not None else 1) - 1
        topic.last_write = frame.ts
        if recipe is None:
            self._columns.add_hole(topic, frame.seq, frame.seq, "source_trim")
            return
        self._copy(topic, frame, recipe)
        if topic.tree is not None:
            topic.tree.publish(frame.seq, Leaves(leaves_in(payload, len(recipe.flags))))

    def _move_router(self, topic: RecoveredTopic, payload: dict[str, Any]) -> bool:
        """Move the cursor. Return True if the frame stands for a hole in the source."""
        forwarded = decode_forwarded(payload)
        router = topic.incoming.get(forwarded.router)
        if router is not None and router.source_id == forwarded.source:
            router.cursor = max(router.cursor, forwarded.last)
            router.forwarded = max(router.forwarded, forwarded.total)
        self.reached[forwarded.source] = max(forwarded.last, self.reached.get(forwarded.source, 0))
        return forwarded.trims

    def _copy(self, topic: RecoveredTopic, frame: Frame, recipe: CopyRecipe) -> None:
        """Add the copies of one recipe. Only their tags have to be read from their bytes."""
        n = len(recipe.flags)
        flags = bytearray(recipe.flags)
        tags = self._tags(topic, frame.seq, recipe, flags)
        topic.log.extend_records(
            frame.seq,
            array("Q", (frame.ts,)) * n,
            recipe.files,
            recipe.offsets,
            recipe.frame_lens,
            recipe.sizes,
            bytes(flag | FLAG_DERIVED for flag in flags),
            tags if any(tags) else None,
        )
        topic.copies = topic.copies or CopyTable()
        topic.copies.add(frame.seq, recipe.kinds, recipe.origin_seqs)
        topic.copies.need(set(recipe.files) - {0}, frame.seq + n - 1)
        if topic.origins is not None:
            for i, (kind, seq) in enumerate(zip(each_kind(recipe.kinds), recipe.origin_seqs, strict=True)):
                if flags[i] & HAS_ORIGIN and frame.seq + i not in topic.missing:  # a lost copy may come by another path
                    topic.origins.add(kind.topic_id, seq)

    def _tags(self, topic: RecoveredTopic, first: int, recipe: CopyRecipe, flags: bytearray) -> list[str | None]:
        """Return the tag of each copy; the first copy has the seq `first`. A copy whose bytes are missing is made from
        its stand-in, whose place goes into the recipe; without one it is noted, and loses its flag of a tag.

        Bytes in a segment were on disk before the copy was made, so copies without a tag count as present even while
        the cold store, to which the segment may have gone since, does not answer.
        """
        tags: list[str | None] = [None] * len(flags)
        tiers = self._columns.tiers
        tagged = any(flag & HAS_TAG for flag in flags)
        if not tagged and holds(self._fs, tiers, self._files, recipe):
            return tags
        away: set[int] = set()
        opened = read_recipe(self._fs, tiers, self._files, recipe, None if tagged else away)
        if self._stand_ins.use(recipe, topic.id, first, opened):
            away.clear()
            opened = read_recipe(self._fs, tiers, self._files, recipe, None if tagged else away)
        for i in missing_in(recipe, opened):
            if i not in away:
                topic.missing[first + i] = None
                flags[i] &= ~HAS_TAG
        for i, record in enumerate(opened):
            if record is not None and flags[i] & HAS_TAG:
                tags[i] = record.tag.decode()
        return tags

    def settle_routers(self, topics: Mapping[int, RecoveredTopic]) -> None:
        """Remove routers whose source or dest no longer exists (`docs/spec/crash.md` 20), and lower cursors to their
        source's head (`docs/spec/crash.md` 15)."""
        for topic in topics.values():
            gone = [name for name, router in topic.incoming.items() if router.source_id not in topics]
            for name in gone:
                del topic.incoming[name]
                keep_origins(topic)
                topic.part = None
            for router in topic.incoming.values():
                self.reached[router.source_id] = max(router.cursor, self.reached.get(router.source_id, 0))
        for topic_id, last in self.reached.items():
            source = topics.get(topic_id)
            if source is not None:
                source.forwarded_to = max(source.forwarded_to, last)
