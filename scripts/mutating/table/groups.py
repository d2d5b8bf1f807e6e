"""Mutations. Groups of a log."""

from __future__ import annotations

from typing import Final

from mutating.mutation import Mutation

GROUPS: Final = (
    Mutation(
        "group-ack-answered-before-its-sync",
        "groups",
        "topics/engine/queues/lease_commits.py",
        "commit_point = topic.commit_point if data else CommitPoint.HANDED",
        "commit_point = CommitPoint.HANDED",
        "consumers 4: an ack is logged in the class of the topic before the answer",
        "unit",
    ),
    Mutation(
        "group-ack-not-replayed",
        "groups",
        "topics/groups/group.py",
        "if isinstance(event, AckEvent | DeadLetterEvent | DeliverEvent):",
        "if isinstance(event, DeadLetterEvent):",
        "consumers 4: what the group has finished does not come back",
        "unit",
    ),
    Mutation(
        "group-floor-passes-what-is-held",
        "groups",
        "topics/groups/group.py",
        "to = log.head_seq if live is None else live - 1",
        "to = log.head_seq if live is None else live",
        "consumers 4: nothing is skipped",
        "unit",
    ),
    Mutation(
        "group-misses-nothing",
        "groups",
        "topics/groups/group.py",
        "self.touch()\nself.missed += missed",
        "self.touch()\nself.missed += 0",
        "consumers 4: records lost before they were finished are counted",
        "unit",
    ),
    Mutation(
        "group-without-bound",
        "groups",
        "topics/groups/group.py",
        "return self.max_unfinished - held - len(self.finished)",
        "return self.max_unfinished",
        "consumers 4: beyond max_unfinished claims get nothing fresh",
        "unit",
    ),
    Mutation(
        "group-filter-forgotten",
        "groups",
        "topics/groups/group.py",
        "fresh = [seq for seq in matches if seq >= first and seq not in self.finished and not is_kept(seq)]",
        "fresh = list(range(first, to + 1))",
        "consumers 4: what the filter refuses counts as finished",
        "unit",
    ),
    Mutation(
        "group-looks-without-end",
        "groups",
        "topics/engine/queues/looks.py",
        "claimer.scan_is_over = claimer.scanned >= self._settings.max_scan",
        "claimer.scan_is_over = False",
        "consumers 2: a claim looks at no more than TOPICS_MAX_SCAN records",
        "unit",
    ),
    Mutation(
        "deleted-group-goes-on",
        "groups",
        "topics/engine/groups/group_calls.py",
        "known.deleted = True",
        "known.deleted = False",
        "consumers 4: a group of the same name begins anew",
        "unit",
    ),
    Mutation(
        "consumed-without-groups",
        "groups",
        "topics/engine/consumers/consumed.py",
        "topic.groups.lowest_floor(topic.log) if topic.groups is not None else None,",
        "None,",
        "consumers 3: records that a group has not finished are kept",
        "unit",
    ),
    Mutation(
        "group-stream-not-told-of-evictions",
        "groups",
        "topics/engine/group_queue.py",
        "if passed >= MOST_PASSED or is_told:",
        "if passed >= MOST_PASSED:",
        "api 9: a stream is told of jobs that it no longer holds",
        "unit",
    ),
)
