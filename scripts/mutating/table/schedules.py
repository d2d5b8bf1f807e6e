"""Mutations. Schedules."""

from __future__ import annotations

from typing import Final

from mutating.mutation import Mutation

SCHEDULES: Final = (
    Mutation(
        "firing-without-its-time",
        "schedules",
        "topics/engine/operations/append.py",
        """
            if attachment is not None:
                tail += attachment.frames
        """,
        """
            if attachment is not None:
                tail += ()
        """,
        "consumers 5: last_ts is committed in the batch of the firing",
        "unit",
    ),
    Mutation(
        "firing-as-durable-as-the-class",
        "schedules",
        "topics/engine/operations/append.py",
        "commit_point = CommitPoint.SYNCED",
        "pass",
        "consumers 5: a firing is synced in every class",
        "unit",
    ),
    Mutation(
        "firings-of-topics-that-are-gone-forgotten",
        "schedules",
        "topics/storage/recovery/shard_replay.py",
        "self._schedules.note(batch)",
        "pass",
        "consumers 5: a firing counts although its topic was deleted since",
        "unit",
    ),
    Mutation(
        "snapshot-without-firings",
        "schedules",
        "topics/storage/maintenance/compactor.py",
        "firings=firings,",
        "firings=[],",
        "consumers 5: each fires once over crashes, also after a checkpoint",
        "unit",
    ),
    Mutation(
        "fired-at-or-before-the-last",
        "schedules",
        "topics/schedules/schedules.py",
        "self._covered = max(self.definition.from_ts, self.last_ts or 0)",
        "self._covered = self.definition.from_ts",
        "consumers 5: never at or before last_ts",
        "unit",
    ),
    Mutation(
        "firing-decided-during-a-change",
        "schedules",
        "topics/engine/schedules/firings.py",
        "if schedule is None or schedule.definition is not definition or self._commits.is_changing(name):",
        "if schedule is None:",
        "consumers 5: when a pause is answered nothing can fire any more",
        "unit",
    ),
    Mutation(
        "fired-although-in-doubt",
        "schedules",
        "topics/engine/schedules/firings.py",
        "running.doubtful = True",
        "pass",
        "consumers 5: a firing whose shard fails is in doubt until the next start",
        "unit",
    ),
    Mutation(
        "gap-not-skipped",
        "schedules",
        "topics/schedules/timetable.py",
        "if not exists or due <= ts:",
        "if due <= ts:",
        "consumers 5: a DST gap is skipped",
        "unit",
    ),
    Mutation(
        "overlap-fires-twice",
        "schedules",
        "topics/schedules/timetable.py",
        "moment = local.replace(tzinfo=self._zone).astimezone(UTC)",
        "moment = local.replace(tzinfo=self._zone, fold=now.astimezone(self._zone).fold).astimezone(UTC)",
        "consumers 5: an overlap fires once",
        "unit",
    ),
    Mutation(
        "paused-times-made-up-for",
        "schedules",
        "topics/schedules/schedules.py",
        "return before._replace(paused=paused, from_ts=now) if before.paused != paused else None",
        "return before._replace(paused=paused) if before.paused != paused else None",
        "consumers 5: what was due before a schedule was resumed is never fired",
        "unit",
    ),
    Mutation(
        "clock-set-back-not-seen",
        "schedules",
        "topics/engine/schedules/firings.py",
        "await self._look_at_all(rewind=True)",
        "pass",
        "consumers 5: a wrong clock that is corrected does not silence a schedule that has not fired",
        "unit",
    ),
    Mutation(
        "id-of-a-schedule-given-out-again",
        "schedules",
        "topics/storage/recovery/schedule_replay.py",
        "self._topics.next_id = max(self._topics.next_id, event.id + 1)",
        "pass",
        "consumers 5: a schedule that is made again knows nothing of the firings of the first",
        "unit",
    ),
)
