"""Mutations. Segments: how they are written, rewritten, moved, and what is evicted."""

from __future__ import annotations

from typing import Final

from mutating.mutation import Mutation

RECLAIMER: Final = (
    Mutation(
        "rewrite-takes-undecided-deletions",
        "reclaimer",
        "topics/storage/maintenance/segment_rewrite.py",
        "kept = i >= gone and size > 0 and state != LOST and (state != DELETED or first + i in since)",
        "kept = i >= gone and size > 0 and state != LOST and state != DELETED",
        "8.1, rule 12: files never forget more than the part on disk knows",
        "crash",
    ),
    Mutation(
        "rewrite-loses-flags",
        "reclaimer",
        "topics/storage/maintenance/segment_rewrite.py",
        "plan.flags.append(flag if kept else flag | (IDX_HOLE if state == LOST else IDX_DELETED))",
        "plan.flags.append(flag)",
        "8.4: what was deleted is silent, what was lost is announced",
        "unit",
    ),
    Mutation(
        "cold-flag-before-its-deletion-is-synced",
        "reclaimer",
        "topics/storage/maintenance/cold_flags.py",
        """
                if topic in self._source.changed:
                    self._source.attention.add(topic)  # however its part becomes durable
        """,
        """
                if topic.deleted:
                    self._source.attention.add(topic)  # however its part becomes durable
        """,
        "rule 11: a flag is written only after its Delete frame is synced",
        "crash",
    ),
    Mutation(
        "topic-removed-file-by-file",
        "reclaimer",
        "topics/storage/segments/segment_store.py",
        """
            self._fs.sync_dir(self._dirs.topics_dir)
            for path in present:
        """,
        """
            pass
            for path in present:
        """,
        "8.2: a deleted topic does not come back without some of its files",
        "unit",
    ),
)

SEGMENTS: Final = (
    Mutation(
        "segment-search-goes-back-in-seq",
        "reading",
        "topics/storage/segments/segment_scan.py",
        "if not fits or seq <= above or seq not in self._seqs or data_len < (21 if flags & HAS_ORIGIN else 4):",
        "if not fits or seq not in self._seqs or data_len < (21 if flags & HAS_ORIGIN else 4):",
        "8.2: bytes that a client chose are no record",
        "unit",
    ),
    Mutation(
        "segment-search-without-a-bound",
        "reading",
        "topics/storage/segments/segment_scan.py",
        "self._work -= size",
        "self._work -= 0",
        "8.10: a forged chain of lengths must not cost hours",
        "unit",
    ),
    Mutation(
        "short-file-reads-as-deletion",
        "reading",
        "topics/storage/segments/segment_reader.py",
        "return found if length is None else found._replace(damaged=_beyond(found.columns, first, length))",
        "return found",
        "8.4: no loss that nobody asked for without a tombstone",
        "unit",
    ),
    Mutation(
        "damage-not-noted",
        "reading",
        "topics/storage/cache/span_loader.py",
        """
            topic.log.add_hole(first, last, "corrupt")
            self._notes.note(topic, [(first, last)])
        """,
        """
            topic.log.add_hole(first, last, "corrupt")
        """,
        "8.4: a deletion does not hide damage that was found before it",
        "unit",
    ),
    Mutation(
        "tags-of-a-segment-that-has-grown-meanwhile",
        "reading",
        "topics/storage/cache/span_loader.py",
        """
            if sealed:
                self._cache.add_tags(segment, found.tags)
        """,
        """
            if segment.sealed:
                self._cache.add_tags(segment, found.tags)
        """,
        "consumers 1: tags that only segment files know count",
        "unit",
    ),
    Mutation(
        "tags-of-a-segment-that-was-replaced-meanwhile",
        "reading",
        "topics/storage/cache/span_loader.py",
        """
            found = await self._under_lock(topic, segment, call)
        if sealed:
        """,
        """
            pass
        if sealed:
        """,
        "consumers 2: the index finds everything that matches",
        "unit",
    ),
    Mutation(
        "part-of-another-file-believed",
        "reading",
        "topics/storage/segments/tag_directory.py",
        "if _checksum(pieces) != self._checksums[part]:",
        "if False:",
        "consumers 2: the index finds everything that matches",
        "unit",
    ),
    Mutation(
        "tags-denied-that-are-there",
        "reading",
        "topics/storage/segments/tag_summary.py",
        "return bool(bits[first >> 3] >> (first & 7) & bits[second >> 3] >> (second & 7) & 1)",
        "return bool(bits[first >> 3] >> (first & 7) & bits[second >> 3] & 1)",
        "consumers 2: the index finds everything that matches",
        "unit",
    ),
)

RELOCATOR: Final = (
    Mutation(
        "flip-before-the-copy",
        "relocator",
        "topics/storage/maintenance/relocator.py",
        "await self._offload.run(Pool.COLD_FILES, partial(_copy, tiers, segment))",
        "await self._offload.run(Pool.COLD_FILES, partial(_copy, tiers._replace(cold=tiers.hot), segment))",
        "rule 12: the pointer decides, so the copy is there before it",
        "crash",
    ),
    Mutation(
        "hot-copy-goes-before-the-flip",
        "relocator",
        "topics/storage/maintenance/relocator.py",
        """
                    await self._checkpoints.store([topic], moved=segment, tier="cold")
                    if topic.deleted or segment.tier != "cold":
                        return False
                    await self._offload.run(Pool.FILES, partial(_remove_hot, tiers, segment))
        """,
        """
                    await self._offload.run(Pool.FILES, partial(_remove_hot, tiers, segment))
                    await self._checkpoints.store([topic], moved=segment, tier="cold")
                    if topic.deleted or segment.tier != "cold":
                        return False
        """,
        "rule 12: before the flip the hot copy counts",
        "crash",
    ),
    Mutation(
        "flags-that-came-during-a-copy-forgotten",
        "relocator",
        "topics/storage/maintenance/relocator.py",
        "late, segment.flagged_meanwhile = sorted(segment.flagged_meanwhile), set()",
        "late, segment.flagged_meanwhile = [], set()",
        "8.2, rule 12: flags set during a copy are applied to it before the flip",
        "unit",
    ),
    Mutation(
        "cold-directory-of-somebody-else-taken-over",
        "relocator",
        "topics/storage/cold/identity.py",
        "if mine is None or its.data != mine.id or mine.cold not in (None, its.id):",
        "if mine is not None and its.data == its.id:",
        "8.2: nobody deletes the segments of another data directory",
        "unit",
    ),
    Mutation(
        "flags-of-a-moving-segment-written-to-its-old-files",
        "relocator",
        "topics/storage/maintenance/topic_capture.py",
        "pending = [span for span in self.spans if span.segment is not moved]",
        "pending = self.spans",
        "8.2, rule 12: a deletion during a move does not come back",
        "crash",
    ),
)

EVICTION: Final = (
    Mutation(
        "evict-watermark-not-logged",
        "eviction",
        "topics/engine/operations/append.py",
        "tail += removals",
        "pass",
        "8.2: what was evicted never comes back",
        "crash",
    ),
    Mutation(
        "ttl-floor-not-logged",
        "eviction",
        "topics/engine/commits.py",
        'return {"below": floor, "reason": "ttl"}',
        "return None",
        "8.4: replay knows what had expired before a deletion took the rest",
        "crash",
    ),
    Mutation(
        "ttl-floor-not-latched",
        "eviction",
        "topics/engine/operations/topic_lifecycle.py",
        "if old.ttl_ms and topic.log.losses.evict_floor > 1:",
        "if old.ttl_ms and topic.log.losses.evict_floor < 1:",
        "rule 6: what has expired stays so under a longer ttl",
        "crash",
    ),
    Mutation(
        "one-record-above-the-cap",
        "eviction",
        "topics/log/retention.py",
        "if cap_records and (over := log.count + new_records - cap_records) > 0:",
        "if cap_records and (over := log.count + new_records - cap_records - 1) > 0:",
        "8.5: a cap is exact",
        "unit",
    ),
    Mutation(
        "bytes-of-deleted-records-counted",
        "eviction",
        "topics/log/topic_log.py",
        "self.bytes -= gone.bytes",
        "pass",
        "8.5: bytes is what a full read would show",
        "unit",
    ),
)
