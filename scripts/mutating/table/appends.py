"""Mutations. Stages, keys of appends, classes of durability."""

from __future__ import annotations

from typing import Final

from mutating.mutation import Mutation

STAGING: Final = (
    Mutation(
        "stages-not-synced",
        "staging",
        "topics/engine/operations/stage_commits.py",
        """
            for stage in {stage.shard: stage for stage in stages}.values():
                await self._commits.sync_shard(stage)
        """,
        """
            for stage in {stage.shard: stage for stage in stages}.values():
                await trio.lowlevel.checkpoint()
        """,
        "8.3, rule 23: a commit refers to nothing that can be lost without it",
        "crash",
    ),
    Mutation(
        "commit-in-pieces",
        "staging",
        "topics/storage/wal/frames.py",
        """
            flags = (CONTINUES if i else 0) | (MORE if i < last else 0)
            bodies.append(_BODY.pack(kind, flags, topic_id, seq, ts, 0, 0, len(blob)) + blob)
        """,
        """
            flags = CONTINUES if i else 0
            bodies.append(_BODY.pack(kind, flags, topic_id, seq, ts, 0, 0, len(blob)) + blob)
        """,
        "8.3: a staged commit is there whole or not at all",
        "crash",
    ),
    Mutation(
        "transaction-shown-before-all-is-synced",
        "transactions",
        "topics/engine/transaction.py",
        "if self._unsynced or self.error is not None:",
        "if self.error is not None:",
        "8.3: a transaction is there whole or not at all",
        "crash",
    ),
    Mutation(
        "transaction-decided-before-it-is-published",
        "transactions",
        "topics/engine/transaction.py",
        """
            for one in self.members:
                one.ready = True
        """,
        """
            for one in self.members:
                one.ready = True
                self._queue(one, ControlBatch(self._decision(one), 1, topic_id=one.topic_id))
        """,
        "8.3: a transaction is there whole or not at all",
        "unit",
    ),
    Mutation(
        "transaction-counts-in-part",
        "transactions",
        "topics/storage/recovery/transaction_replay.py",
        "return not all(",
        "return not any(",
        "8.3: a transaction is there whole or not at all",
        "crash",
    ),
    Mutation(
        "transaction-undone-counts-beside-damage",
        "transactions",
        "topics/storage/recovery/transaction_replay.py",
        "if any(self.outcomes[members] for members in self._counted):",
        "if False:",
        "8.3: a transaction is there whole or not at all, also after a salvage",
        "unit",
    ),
    Mutation(
        "transaction-decided-again",
        "transactions",
        "topics/storage/recovery/verdicts.py",
        "others[i] = others[i]._replace(decisions=[*others[i].decisions, decision])",
        "pass",
        "rule 2: what a recovery has decided, the next one decides as well",
        "crash",
    ),
    Mutation(
        "replay-behind-a-transaction-in-doubt",
        "transactions",
        "topics/storage/maintenance/compactor.py",
        "starts[shard] = min(starts[shard], start)",
        "pass",
        "8.1: what was acked survives, in every topic of a transaction",
        "crash",
    ),
    Mutation(
        "transaction-undone-in-memory-only",
        "transactions",
        "topics/storage/recovery/transaction_replay.py",
        "(self.undo if undone else self.apply)(one.topic, one.shard, one.batch)",
        "self.apply(one.topic, one.shard, one.batch)",
        "8.2: nothing comes back that was undone",
        "unit",
    ),
    Mutation(
        "commit-key-not-remembered",
        "staging",
        "topics/engine/operations/stage_commits.py",
        "target.commit_keys.remember(decided.key, decided.first_seq, commit.records, decided.at, names)",
        "pass",
        "rule 23: a commit is repeated as it was",
        "life",
    ),
    Mutation(
        "commit-key-not-restored",
        "staging",
        "topics/storage/recovery/topic_replay.py",
        'topic.commit_keys.remember(payload["key"], payload["first"], payload["count"], at, payload["stages"])',
        "pass",
        "rule 23: a commit is repeated as it was, after a restart too",
        "life",
    ),
    Mutation(
        "committed-stage-comes-back",
        "staging",
        "topics/storage/recovery/verdicts.py",
        "if target is None or closed or topic.log.count != topic.log.head_seq:",
        "if target is None or topic.log.count != topic.log.head_seq:",
        "rule 23: a committed stage is closed, after any crash",
        "crash",
    ),
    Mutation(
        "partial-stage-kept",
        "staging",
        "topics/storage/recovery/verdicts.py",
        "if target is None or closed or topic.log.count != topic.log.head_seq:",
        "if target is None or closed:",
        "8.3: no commit publishes a part of what was staged",
        "crash",
    ),
    Mutation(
        "damaged-stage-committed",
        "staging",
        "topics/engine/operations/stage_commits.py",
        "if stage.deleted or _is_damaged(stage):",
        "if stage.deleted:",
        "8.3: no commit publishes a part of what was staged",
        "life",
    ),
)

IDEMPOTENCY: Final = (
    Mutation(
        "keys-of-parts-not-restored",
        "idempotency",
        "topics/storage/recovery/stored_parts.py",
        "topic.keys = DedupeWindow.load(part.keys) if part.keys else None",
        "topic.keys = None",
        "8.2: a repeat under a key that was acked makes no second record",
        "life",
    ),
    Mutation(
        "keys-of-the-log-not-restored",
        "idempotency",
        "topics/storage/recovery/topic_replay.py",
        'topic.keys.remember(payload["key"], payload["first"], payload["count"], at)',
        "pass",
        "8.2: a repeat under a key that was acked makes no second record",
        "life",
    ),
    Mutation(
        "repeat-does-not-wait-for-the-first",
        "idempotency",
        "topics/engine/idempotency_keys.py",
        "topic.keys_in_flight[key] = commit.done",
        "pass",
        "api 1: an append and its repeat make one record, at the same time too",
        "unit",
    ),
    Mutation(
        "key-of-a-failed-append-remembered",
        "idempotency",
        "topics/engine/idempotency_keys.py",
        "commit.on_fail = partial(self._fail, topic, key)",
        "commit.on_fail = partial(self.remember, topic, key, commit.last_seq, commit.records, 0)",
        "8.1: a repeat is acked only if the first append was",
        "life",
    ),
    Mutation(
        "key-not-logged",
        "idempotency",
        "topics/engine/operations/append.py",
        'tail.append((FrameType.IDEMPOTENCY, {"key": key, "first": first_seq, "count": count, "at": at}))',
        "pass",
        "8.2: a repeat after a restart makes no second record",
        "life",
    ),
    Mutation(
        "windows-by-the-wall-clock",
        "idempotency",
        "topics/runtime/window_clock.py",
        "return self._ahead + self._clock.monotonic_ms()",
        "return self._clock.now_ms()",
        "8.2: a wall clock that is set makes no second record of a repeat",
        "unit",
    ),
    Mutation(
        "boot-of-the-mark-not-asked",
        "idempotency",
        "topics/runtime/window_clock.py",
        "passed = boottime - mark.boottime",
        "passed = wall - mark.wall",
        "8.2: a wall clock that is set between two lives makes no second record of a repeat",
        "unit",
    ),
)

CLASSES: Final = (
    Mutation(
        "ephemeral-records-not-written-out",
        "classes",
        "topics/engine/operations/topic_lifecycle.py",
        "await self._write_out(topic)",
        "pass",
        "rule 24: leaving ephemeral writes its live records",
        "life",
    ),
    Mutation(
        "full-disk-not-noticed",
        "classes",
        "topics/engine/commits.py",
        "if shortage is not None:",
        "if shortage is not None and self.saturated:",
        "rule 27: below TOPICS_MIN_FREE_BYTES appends are refused",
        "life",
    ),
    Mutation(
        "dead-letters-may-be-ephemeral",
        "classes",
        "topics/engine/operations/topic_lifecycle.py",
        "if fields:",
        "if not fields:",
        "rule 26: a referenced dead-letter topic does not turn ephemeral",
        "life",
    ),
)
