"""Mutations. Conditions, fences, transactions, consumers."""

from __future__ import annotations

from typing import Final

from mutating.mutation import Mutation

CONDITIONS: Final = (
    Mutation(
        "refusal-told-before-it-can-be-seen",
        "conditions",
        "topics/engine/operations/judge.py",
        "await self._commits.wait_for(last.done)",
        "pass",
        "consumers 1: a refusal is told once what it was judged against is visible",
        "unit",
    ),
    Mutation(
        "refusal-outlives-what-it-was-judged-against",
        "conditions",
        "topics/engine/operations/judge.py",
        """
            if last.error is not None:
                raise last.error
        """,
        """
            if last.error is not None:
                pass
        """,
        "consumers 1: where that commit fails, those judged against it fail with it",
        "unit",
    ),
    Mutation(
        "published-head-judged",
        "conditions",
        "topics/engine/operations/judge.py",
        "return refusal(conditions, head_seq=topic.assigned, newest=newest, fences=fences)",
        "return refusal(conditions, head_seq=topic.log.head_seq, newest=newest, fences=fences)",
        "consumers 1: conditions are judged against everything assigned, published or not",
        "unit",
    ),
    Mutation(
        "pending-tags-not-judged",
        "conditions",
        "topics/engine/operations/append.py",
        "commit.foreseen = Foreseen(batch.tags, watermark)",
        "commit.foreseen = Foreseen(None, watermark)",
        "consumers 1: tags of records on their way count",
        "unit",
    ),
    Mutation(
        "pending-evictions-not-judged",
        "conditions",
        "topics/engine/operations/append.py",
        "commit.foreseen = Foreseen(batch.tags, watermark)",
        "commit.foreseen = Foreseen(batch.tags, 0)",
        "consumers 1: only the newest live record counts",
        "unit",
    ),
    Mutation(
        "pending-deletions-not-judged",
        "conditions",
        "topics/engine/operations/judge.py",
        "removals.append(foreseen.removes)",
        "pass",
        "consumers 1: only the newest live record counts",
        "unit",
    ),
    Mutation(
        "tags-of-segments-not-judged",
        "conditions",
        "topics/engine/operations/judge.py",
        "self._spans = log.tags.spans_in_files(log.head_seq)[::-1]",
        "self._spans = log.tags.spans_in_files(0)[::-1]",
        "consumers 1: tags that only segment files know count",
        "unit",
    ),
    Mutation(
        "pending-deletions-not-judged-in-files",
        "conditions",
        "topics/engine/operations/tag_search.py",
        "newest = max(newest, next((seq for seq in live if seq >= floor and counts(seq)), 0))",
        "newest = max(newest, next((seq for seq in live if seq >= floor), 0))",
        "consumers 1: only the newest live record counts",
        "unit",
    ),
    Mutation(
        "half-of-the-tags-on-their-way-judged",
        "conditions",
        "topics/engine/operations/judge.py",
        "known = foreseen.newest",
        "known = foreseen.newest or {}",
        "consumers 1: tags of records on their way count",
        "unit",
    ),
    Mutation(
        "published-records-judged-as-on-their-way",
        "conditions",
        "topics/engine/operations/judge.py",
        "if newest and (seq := newest.get(tag, 0)) > log.head_seq:",
        "if newest and (seq := newest.get(tag, 0)):",
        "consumers 1: only the newest live record counts",
        "unit",
    ),
    Mutation(
        "noted-tags-outlive-a-seal",
        "conditions",
        "topics/log/topic_tags.py",
        """
        self._in_files = None
        if self.index is not None:
            self.index.garbage += gone
        return gone
        """,
        """
        if self.index is not None:
            self.index.garbage += gone
        return gone
        """,
        "consumers 1: tags that only segment files know count",
        "unit",
    ),
    Mutation(
        "noted-record-counts-when-it-is-gone",
        "conditions",
        "topics/log/topic_tags.py",
        "return seq if not seq or self._records.is_live(seq) else None",
        "return seq",
        "consumers 1: only the newest live record counts",
        "unit",
    ),
    Mutation(
        "noted-record-counts-while-it-is-deleted",
        "conditions",
        "topics/engine/operations/judge.py",
        "if known is None or (known and removals):",
        "if known is None:",
        "consumers 1: only the newest live record counts",
        "unit",
    ),
    Mutation(
        "condition-makes-a-topic",
        "conditions",
        "topics/engine/operations/append.py",
        """
            if request.conditions is not None:
                check_missing(request.conditions, ephemeral=config.durability == "ephemeral")
        """,
        """
            if request.conditions is not None:
                pass
        """,
        "consumers 1: a condition that fails makes no topic",
        "unit",
    ),
    Mutation(
        "refused-append-raises-its-fence",
        "conditions",
        "topics/engine/operations/judge.py",
        "error = self.judge(topic, conditions, found)",
        "error = raise_fence(topic, conditions) and self.judge(topic, conditions, found)",
        "consumers 1: a refused append raises no fence",
        "unit",
    ),
    Mutation(
        "fence-not-logged",
        "conditions",
        "topics/engine/operations/append.py",
        "tail.append(fence_frame(fence))",
        "pass",
        "consumers 1: a fence is as durable as its batch",
        "unit",
    ),
    Mutation(
        "fence-not-replayed",
        "conditions",
        "topics/storage/recovery/topic_replay.py",
        'topic.fences.update(fences_of({payload["name"]: payload["token"]}))',
        "pass",
        "consumers 1: a fence is as durable as its batch",
        "unit",
    ),
    Mutation(
        "fence-not-in-the-snapshot",
        "conditions",
        "topics/engine/topic.py",
        "fences=dict(self.fences.published) if self.fences is not None else {},",
        "fences={},",
        "consumers 1: a fence is as durable as its batch, also behind a checkpoint",
        "unit",
    ),
    Mutation(
        "decided-fences-in-the-snapshot",
        "conditions",
        "topics/engine/topic.py",
        "fences=dict(self.fences.published) if self.fences is not None else {},",
        "fences=dict(self.fences.decided) if self.fences is not None else {},",
        "8.6: a snapshot is what a replay to its position would show",
        "unit",
    ),
    Mutation(
        "lower-token-accepted",
        "conditions",
        "topics/conditions/verdict.py",
        "if fence.token >= highest:",
        "if fence.token + 1 >= highest:",
        "consumers 1: a fence refuses lower tokens",
        "unit",
    ),
    Mutation(
        "fence-removal-not-synced",
        "conditions",
        "topics/engine/operations/fence_removal.py",
        "commit = Commit(topic, data, 1, CommitPoint.SYNCED, publish, self._clock.perf_ns)",
        "commit = Commit(topic, data, 1, CommitPoint.WRITTEN, publish, self._clock.perf_ns)",
        "consumers 1: a removed fence stays removed after any crash",
        "unit",
    ),
)
