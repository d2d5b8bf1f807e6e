"""Transactions, while the log is replayed (`docs/design/transactions.md` section 3).

A transaction counts if and only if each of its batches is complete in the log of its shard, and no Decision frame says
that it was undone. If replay does not know the outcome of a batch's transaction yet, it keeps back the batch and all
later batches of the topic, until the topic's own Decision frame comes, or all shards have been read. Then it applies
these batches in their order. So replay passes through the states that readers saw.

In a shard with a range that salvage has given up, no batch is kept back, because recovery computes from the heads of
the topics how many records the range held. A batch in doubt is applied there as if it counted. If it does not count,
which is known when all shards have been read, the whole replay begins again with the known outcomes (`replay.recover`).

A standby goes on reading (`settle`): it decides nothing that its owner has not decided.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from topics.log.dumped_values import whole
from topics.storage.recovery.frame_batches import FrameBatch
from topics.storage.recovery.recovered_state import RecoveredShard, RecoveredTopic, TransactionDecision
from topics.storage.wal.frames import FrameType
from topics.storage.wal.wal_files import LogPosition

_TRANSACTION: Final = int(FrameType.TRANSACTION)
_DECISION: Final = int(FrameType.TRANSACTION_DECISION)

Member = tuple[int, int, int]
"""The part of a transaction in one topic: topic id, first and last seq, or a token (`topics.storage.wal.members`)."""

Members = tuple[Member, ...]
"""All members of a transaction. Two transactions with a frame on disk never have the same members."""


class _KeptBack(NamedTuple):
    """A batch that waits for the outcome of its own transaction, or of an earlier one in its topic."""

    topic: RecoveredTopic
    shard: RecoveredShard
    batch: FrameBatch
    members: Members | None
    """The members of the transaction to which the batch belongs; None if it belongs to none."""


class TransactionReplay:
    """The transactions that replay has met. `note` is told of every batch, in the order of its shard; `take` of every
    batch that a topic has yet to apply."""

    def __init__(
        self,
        apply: Callable[[RecoveredTopic, RecoveredShard, FrameBatch], None],
        undo: Callable[[RecoveredTopic, RecoveredShard, FrameBatch], None],
        outcomes: Mapping[Members, bool] | None = None,
    ) -> None:
        """`apply` applies a batch, `undo` a batch of a transaction that does not count. Both may raise. `outcomes` are
        those of an earlier replay of the same log."""
        self.outcomes = dict(outcomes or {})
        """For each transaction, True if it is undone. Filled from Decision frames; complete after `decide`."""
        self.decisions: list[TransactionDecision] = []
        """Decisions of `decide` for which the log has no Decision frame."""
        self.apply = apply
        self.undo = undo
        self.mark: object = None
        """Kept with each transaction that is met from now on. A standby sets it before each cut."""
        self._found: dict[Members, set[int]] = {}
        """Ids of the topics whose batch was found, by transaction, in the order in which they were met."""
        self._times: dict[Members, int] = {}
        """When a transaction was written (ms of the retention clock)."""
        self._marks: dict[Members, object] = {}
        self._at: dict[tuple[int, int], Members] = {}
        """The transaction whose batch was found at a topic id and first seq. If a batch was not found, another
        transaction may have the same place."""
        self._undone_apart: set[Member] = set()
        """Records that a Decision frame undoes although their batch was not found before it."""
        self._counted: set[Members] = set()
        """Transactions of which a batch was applied as if they counted."""
        self._told: set[tuple[int, int]] = set()
        """Topic ids and first seqs of the batches that have their Decision frame."""
        self._kept_back: dict[int, list[_KeptBack]] = {}
        """By topic id, in the order of the log. The first of each list is a batch of a transaction."""

    def note(self, batch: FrameBatch) -> None:
        """Take note of what a batch says about transactions, whether its topic has applied it already or not. Raises
        any exception for a malformed payload."""
        if not batch.controls:
            return
        for row in batch.rows[-batch.controls :]:
            payload = batch.extras[row[0]]
            if row[2] == _TRANSACTION:
                self._find(row[4], members_of(payload["members"]), row[6])
            elif row[2] == _DECISION:
                self._hear(row[4], whole(payload["first"]), whole(payload["last"]), undone=bool(payload["undone"]))

    def _find(self, topic_id: int, members: Members, ts: int) -> None:
        self._found.setdefault(members, set()).add(topic_id)
        self._times.setdefault(members, ts)
        self._marks.setdefault(members, self.mark)
        self._at.update(((topic_id, first), members) for owner, first, _ in members if owner == topic_id)

    def _hear(self, topic_id: int, first: int, last: int, *, undone: bool) -> None:
        """Take note of a Decision frame. If any Decision frame says that the transaction was undone, it was."""
        place = topic_id, first
        self._told.add(place)
        if place in self._at:
            members = self._at[place]
            self.outcomes[members] = undone or self.outcomes.get(members, False)
        elif undone:
            # Its batch is before the replayed range, and then each shard has its own Decision frame; or it was damaged.
            self._undone_apart.add((topic_id, first, last))

    def take(self, topic: RecoveredTopic, shard: RecoveredShard, batch: FrameBatch) -> None:
        """Apply a batch to its topic, or keep it back. Exceptions of `apply` are passed on."""
        kept = self._kept_back.get(topic.id)
        members = self._transaction_of(batch)
        if kept is None and members is None:
            self.apply(topic, shard, batch)
            return
        self._kept_back.setdefault(topic.id, []).append(_KeptBack(topic, shard, batch, members))
        self._release(topic.id, all_count=bool(shard.fillers))

    def begins_tree(self, topic: RecoveredTopic) -> bool:
        """Return True if a kept-back batch begins the Merkle tree of a topic, which has none yet: later batches need
        their leaves all the same."""
        return any(one.batch.has_control(FrameType.EVIDENCE) for one in self._kept_back.get(topic.id, ()))

    def keeps_back_of(self, topic: RecoveredTopic) -> bool:
        """Return True if batches of the topic are kept back: its head is behind the log."""
        return topic.id in self._kept_back

    def give_in(self, shard: RecoveredShard) -> bool:
        """Apply all kept-back batches of a shard, because its log is damaged. Return True if there were any."""
        ids = [topic_id for topic_id, kept in self._kept_back.items() if kept[0].shard is shard]
        for topic_id in ids:
            self._release(topic_id, all_count=True)
        return bool(ids)

    def decide(self, damaged: Callable[[int], bool], may_be_there: Callable[[int, int, int], bool]) -> bool:
        """Decide the transactions in doubt, when all shards have been read. Return False if a batch was applied as if
        it counted, and does not count: then the result of this replay must not be used, except `outcomes` for another
        replay.

        `damaged` tells whether the shard of a topic id has a range that was given up. `may_be_there` is asked about a
        member whose batch was not found, by topic id, last seq or token, and the time of the transaction. It returns
        True if the batch may be in such a range or before the replayed one. Raises what applying raises.
        """
        for members, found in self._found.items():
            undone = self.outcomes.get(members)
            if undone is None:
                undone = self.outcomes[members] = self._is_undone(members, found, damaged, may_be_there)
            for topic_id, first, last in members:
                if topic_id in found and (topic_id, first) not in self._told:
                    self.decisions.append(TransactionDecision(topic_id, first, last, undone))
        if any(self.outcomes[members] for members in self._counted):
            return False
        for topic_id in list(self._kept_back):
            self._release(topic_id, all_count=False)
        assert not self._kept_back
        return True

    def settle(self) -> None:
        """Apply what can be decided at the end of a cut, when more of the log will follow: for a standby. A transaction
        counts if all its batches were found and nothing before them, in any of its topics, waits for a decision: then
        its owner has published it. Others wait for their Decision frames, which come after a failure of a shard. What
        has got all its Decision frames is forgotten. Raises what applying raises."""
        undecided = [members for members in self._found if members not in self.outcomes]
        while undecided:
            ready = [members for members in undecided if self._is_due(members)]
            if not ready:
                break
            for members in ready:
                self.outcomes[members] = False
                for topic_id, _, _ in members:
                    if topic_id in self._kept_back:
                        self._release(topic_id, all_count=False)
            undecided = [members for members in undecided if members not in self.outcomes]
        self._forget_told()

    def _is_due(self, members: Members) -> bool:
        """Return True if every batch of a transaction was found, and is the first that its topic has yet to apply."""
        found = self._found[members]
        for topic_id, _, _ in members:
            kept = self._kept_back.get(topic_id)
            if topic_id not in found or (kept is not None and kept[0].members != members):
                return False
        return True

    def _forget_told(self) -> None:
        """Forget the transactions that no later frame is about."""
        waiting = {one.members for kept in self._kept_back.values() for one in kept}
        for members in list(self._found):
            if members in waiting or not all((topic_id, first) in self._told for topic_id, first, _ in members):
                continue
            del self._found[members], self._times[members], self._marks[members]
            self.outcomes.pop(members, None)
            self._counted.discard(members)
            for topic_id, first, _ in members:
                if self._at.get((topic_id, first)) == members:
                    del self._at[topic_id, first]
        self._told &= self._at.keys()
        if not self._found:
            self.outcomes.clear()
            self._undone_apart.clear()

    @property
    def marks_in_doubt(self) -> dict[object, None]:
        """The marks of the transactions of which a Decision frame is missing, the first one met first. Complete after
        `settle`, which forgets the others."""
        return dict.fromkeys(self._marks[members] for members in self._found)

    @property
    def keeps_back(self) -> Mapping[int, LogPosition]:
        """By topic id, where the first batch begins that waits for a decision."""
        return {
            topic_id: LogPosition(kept[0].batch.file.ordinal, kept[0].batch.rows[0][0])
            for topic_id, kept in self._kept_back.items()
        }

    def _is_undone(
        self,
        members: Members,
        found: set[int],
        damaged: Callable[[int], bool],
        may_be_there: Callable[[int, int, int], bool],
    ) -> bool:
        """Decide about a transaction of which no Decision frame behind its batches was found."""
        if not self._undone_apart.isdisjoint(members):
            return True
        # Without damage a batch that is before the replayed range has its Decision frame in all shards.
        may_lack = any(map(damaged, found))
        return not all(
            topic_id in found
            or (may_be_there(topic_id, last, self._times[members]) and (may_lack or damaged(topic_id)))
            for topic_id, _, last in members
        )

    def _release(self, topic_id: int, *, all_count: bool) -> None:
        """Apply the kept-back batches of a topic, up to the next transaction whose outcome is unknown; with
        `all_count`, such a batch is applied as if it counted."""
        kept = self._kept_back[topic_id]
        while kept:
            one = kept[0]
            undone = False
            if one.members is not None:
                outcome = self.outcomes.get(one.members)
                if outcome is None and not all_count:
                    return
                undone = bool(outcome)
                if not undone:
                    self._counted.add(one.members)
            del kept[0]
            (self.undo if undone else self.apply)(one.topic, one.shard, one.batch)
        del self._kept_back[topic_id]

    @staticmethod
    def _transaction_of(batch: FrameBatch) -> Members | None:
        for row in batch.rows[-batch.controls :] if batch.controls else ():
            if row[2] == _TRANSACTION:
                return members_of(batch.extras[row[0]]["members"])
        return None


def members_of(value: list[list[int]]) -> Members:
    """Return the members that a Transaction frame names. Raises any exception if it names none."""
    members = tuple((whole(topic_id), whole(first), whole(last)) for topic_id, first, last in value)
    if not members or any(first > last for _, first, last in members):
        raise ValueError("a transaction without members, or a bad one")
    return members
