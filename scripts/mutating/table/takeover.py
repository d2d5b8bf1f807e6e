"""Mutations. Owners, takeover, standbys."""

from __future__ import annotations

from typing import Final

from mutating.mutation import Mutation

TAKEOVER: Final = (
    Mutation(
        "no-fencing-round",
        "takeover",
        "topics/bucket/ownership/takeover.py",
        "await self._puts.create(round_name(head.number), blob, self._keep_on)",
        "pass",
        "bucket 3: from its fencing round on the former owner can add none",
        "unit",
    ),
    Mutation(
        "fencing-round-passes-over-what-is-there",
        "takeover",
        "topics/bucket/ownership/takeover.py",
        """
        await follow(found)
        place.follow(found)
        continue
        """,
        """
        place.follow(found)
        continue
        """,
        "bucket 3: a round of the former owner that is there is applied",
        "unit",
    ),
    Mutation(
        "late-self-fencing",
        "takeover",
        "topics/bucket/ownership/lease.py",
        "FENCED_AFTER: Final = (5, 6)",
        "FENCED_AFTER: Final = (7, 6)",
        "bucket 3: an owner stops at five sixths of its lease",
        "unit",
    ),
    Mutation(
        "lease-counts-from-the-answer",
        "takeover",
        "topics/bucket/ownership/lease_keeper.py",
        "self.lease.renewed(renewal.sent_ms)",
        "self.lease.renewed(self._boottime_ms())",
        "bucket 3: a lease counts from before its renewal was sent",
        "unit",
    ),
    Mutation(
        "replaced-owner-goes-on",
        "takeover",
        "topics/bucket/ownership/lease_keeper.py",
        """
        if found.etag != self._held.etag:
            self._note_successor(found.data)
        """,
        """
        if found.etag == self._held.etag:
            self._note_successor(found.data)
        """,
        "bucket 3: an owner that was replaced stops at once",
        "unit",
    ),
    Mutation(
        "bucket-ceiling-not-archived",
        "takeover",
        "topics/engine/ceilings.py",
        "return CommitPoint.HANDED if last_seq <= ceiling.archived else CommitPoint.ARCHIVED",
        "return CommitPoint.HANDED if last_seq <= ceiling.queued else CommitPoint.ARCHIVED",
        "bucket 3: seqs are given out below a ceiling that a written round has",
        "unit",
    ),
    Mutation(
        "looks-all-the-time",
        "takeover",
        "topics/bucket/ownership/takeover.py",
        "return min(look_s, left_ms / 1000 + 0.001) if left_ms else look_s",
        "return min(look_s, left_ms / 1000 + 0.001)",
        "bucket 3: takers look a few times in a lease",
        "unit",
    ),
    Mutation(
        "failed-base-does-not-wait",
        "takeover",
        "topics/bucket/bases/base_writer.py",
        "self._wake = trio.Event()  # what was asked for before is tried again after the wait",
        "pass",
        "bucket 1: back-off is bounded, and there is one",
        "unit",
    ),
    Mutation(
        "round-ends-in-a-header",
        "standby",
        "topics/bucket/log_reader.py",
        "if pieces and not at and room < min(FILE_HEADER_BYTES, end):",
        "if pieces and not at and room < 0:",
        "bucket 6: a standby applies each round as it comes",
        "unit",
    ),
    Mutation(
        "log-uncut-at-the-handover",
        "standby",
        "topics/bucket/standby/handover.py",
        "cut_to(fs, datadir, note)\nwrite_atomic(fs, join(datadir.root, MARK), TAKEN_OVER)",
        "pass\nwrite_atomic(fs, join(datadir.root, MARK), TAKEN_OVER)",
        "bucket 6: what is behind the last whole cut does not count",
        "crash",
    ),
    Mutation(
        "note-of-the-owner-is-not-written",
        "standby",
        "topics/bucket/standby/handover.py",
        "write_note(fs, datadir, owned)",
        "pass",
        "bucket 6: a start finds the directory of an owner, or of a standby",
        "unit",
    ),
    Mutation(
        "half-a-cut-applied",
        "standby",
        "topics/bucket/standby/round_follower.py",
        """
        if head.ends_cut:
            await self._apply(found)
        """,
        """
        if head.number:
            await self._apply(found)
        """,
        "bucket 7: a follower shows only whole rounds and cuts",
        "unit",
    ),
    Mutation(
        "standby-windows-by-the-wall",
        "standby",
        "topics/engine/standby/live_replay.py",
        "is_ahead = self._knows_windows and before.window > windows + tolerance_ms",
        "is_ahead = False",
        "bucket 6: a lease runs at the new owner as long as at the former one",
        "unit",
    ),
    Mutation(
        "former-owner-answers-who-knows-more",
        "standby",
        "topics/engine/reach.py",
        "if not self._right.is_held and any(map(self._is_behind, places)):",
        "if not self._right.is_held and all(map(self._is_behind, places)):",
        "bucket 6: never a tombstone for what a reader knows",
        "unit",
    ),
    Mutation(
        "standby-judges-epochs-it-does-not-know",
        "standby",
        "topics/engine/reach.py",
        "return place.epoch >= self._registry.next_topic_id  # ids are never given twice, and ascend",
        "return False",
        "bucket 6: never a tombstone for what a reader knows",
        "unit",
    ),
)
