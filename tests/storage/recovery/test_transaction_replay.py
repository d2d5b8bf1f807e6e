"""`TransactionReplay` against the rule itself: a transaction counts if all its batches were found and no Decision frame
says that it was undone; and each topic applies its batches in the order of its log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.model import TopicConfig
from topics.storage.recovery.frame_batches import FrameBatch
from topics.storage.recovery.recovered_state import FilledRange, RecoveredShard, RecoveredTopic, TransactionDecision
from topics.storage.recovery.transaction_replay import Members, TransactionReplay, members_of
from topics.storage.wal.frames import FrameType
from topics.storage.wal.wal_files import WalFile

FILE: WalFile = None  # type: ignore[assignment]
TOPICS = range(1, 5)


def batch(topic_id: int, *frames: tuple[FrameType, int, dict[str, Any]]) -> FrameBatch:
    """A batch of these frames: type, seq, payload."""
    rows, extras = [], {}
    for at, (kind, seq, payload) in enumerate(frames):
        rows.append((at, 50, int(kind), 0, topic_id, seq, 0, 0, 0, 0))
        extras[at] = payload
    return FrameBatch(FILE, rows, sum(kind != FrameType.APPEND for kind, _, _ in frames), extras)


class Replay:
    """A replay of topics, each in a different shard, and the batches that it has applied."""

    def __init__(self, outcomes: Mapping[Members, bool] | None = None) -> None:
        self.applied: dict[int, list[tuple[int, bool]]] = {}
        """First seq of each batch with records, and whether it was undone, in order, by topic."""
        self.topics = {topic_id: RecoveredTopic(topic_id, f"t{topic_id}", TopicConfig()) for topic_id in TOPICS}
        self.shards = {topic_id: RecoveredShard(topic_id, "") for topic_id in TOPICS}
        self.transactions = TransactionReplay(
            lambda topic, shard, one: self.note(topic, one, False),
            lambda topic, shard, one: self.note(topic, one, True),
            outcomes,
        )

    def note(self, topic: RecoveredTopic, one: FrameBatch, undone: bool) -> None:
        if one.rows[0][2] == FrameType.APPEND:
            self.applied.setdefault(topic.id, []).append((one.rows[0][5], undone))

    def read(self, one: FrameBatch) -> None:
        topic_id = one.rows[0][4]
        self.transactions.note(one)
        self.transactions.take(self.topics[topic_id], self.shards[topic_id], one)

    def give_up(self, topic_id: int) -> None:
        """Meet a range that salvage has given up, in the shard of a topic."""
        self.transactions.give_in(self.shards[topic_id])
        self.shards[topic_id].fillers.append(FilledRange(0, 0, 1))

    def decide(self, *stored: tuple[int, int]) -> bool:
        """Decide. For each topic in `stored`, the records up to this seq may be stored even if their batch was not
        found."""
        heads = dict(stored)
        return self.transactions.decide(
            lambda topic_id: bool(self.shards[topic_id].fillers),
            lambda topic_id, last, ts: last <= heads.get(topic_id, 0),
        )


@st.composite
def histories(draw: st.DrawFn) -> Any:
    """Transactions and appends in the order in which they were decided: topics, how many of the batches reached the
    disk (a prefix of each log), and which Decision frames did."""
    entries = []
    for _ in range(draw(st.integers(1, 8))):
        members = draw(st.lists(st.sampled_from(TOPICS), min_size=1, max_size=4, unique=True))
        entries.append((members, draw(st.booleans()), draw(st.lists(st.sampled_from(TOPICS), unique=True))))
    cuts = {topic_id: draw(st.integers(0, 20)) for topic_id in TOPICS}
    return entries, cuts


@given(histories())
def test_all_members_have_the_outcome_of_the_rule(history: Any) -> None:
    entries, cuts = history
    heads = dict.fromkeys(TOPICS, 0)
    logs: dict[int, list[FrameBatch]] = {topic_id: [] for topic_id in TOPICS}
    whole: list[tuple[tuple[tuple[int, int, int], ...], list[int]]] = []
    expected: dict[int, list[int]] = {topic_id: [] for topic_id in TOPICS}
    for members, _, told in entries:
        for topic_id in members:
            heads[topic_id] += 1
        places = tuple((topic_id, heads[topic_id], heads[topic_id]) for topic_id in members)
        found = []
        for topic_id, first, _ in places:
            append: tuple[FrameType, int, dict[str, Any]] = (FrameType.APPEND, first, {})
            more = [(FrameType.TRANSACTION, 0, {"members": [list(one) for one in places]})] if len(members) > 1 else []
            if len(logs[topic_id]) < cuts[topic_id]:
                found.append(topic_id)
                expected[topic_id].append(first)
            logs[topic_id].append(batch(topic_id, append, *more))
        if len(members) > 1:
            whole.append((places, found))
            for topic_id, first, last in places:
                # As the daemon writes them: only when all batches are synced.
                if topic_id in told and len(found) == len(members):
                    payload = {"first": first, "last": last, "undone": False}
                    logs[topic_id].append(batch(topic_id, (FrameType.TRANSACTION_DECISION, 0, payload)))
    replay = Replay()
    for topic_id in TOPICS:
        for one in logs[topic_id][: cuts[topic_id]]:
            replay.read(one)
    assert replay.decide()
    outcome = {(topic_id, first): len(found) < len(places) for places, found in whole for topic_id, first, _ in places}
    for topic_id in TOPICS:
        wanted = [(first, outcome.get((topic_id, first), False)) for first in expected[topic_id]]
        assert replay.applied.get(topic_id, []) == wanted
    for topic_id, first, _, undone in replay.transactions.decisions:
        assert outcome[topic_id, first] is undone


def pair(first: int = 1) -> list[list[int]]:
    return [[1, first, first], [2, 1, 1]]


def test_later_batches_of_a_topic_wait_for_its_decision_frame() -> None:
    replay = Replay()
    replay.read(batch(1, (FrameType.APPEND, 1, {}), (FrameType.TRANSACTION, 0, {"members": pair()})))
    replay.read(batch(1, (FrameType.APPEND, 2, {})))
    replay.read(batch(3, (FrameType.APPEND, 1, {})))
    assert replay.applied == {3: [(1, False)]}
    assert replay.transactions.keeps_back_of(replay.topics[1])
    replay.read(batch(1, (FrameType.TRANSACTION_DECISION, 0, {"first": 1, "last": 1, "undone": True})))
    assert replay.applied[1] == [(1, True), (2, False)]
    assert replay.decide()
    assert replay.transactions.decisions == []


def test_one_decision_frame_decides_for_all_topics() -> None:
    """A live daemon undoes a transaction when a shard fails; the failed shard's batch may still be on disk."""
    replay = Replay()
    for topic_id in (1, 2):
        replay.read(batch(topic_id, (FrameType.APPEND, 1, {}), (FrameType.TRANSACTION, 0, {"members": pair()})))
    replay.read(batch(2, (FrameType.TRANSACTION_DECISION, 0, {"first": 1, "last": 1, "undone": True})))
    assert replay.decide()
    assert replay.applied == {1: [(1, True)], 2: [(1, True)]}
    assert replay.transactions.decisions == [TransactionDecision(1, 1, 1, True)]


def test_a_lost_seq_of_a_transaction_may_belong_to_another_transaction() -> None:
    """The decision about the second transaction says nothing about the first."""
    replay = Replay()
    first, second = [[1, 1, 1], [2, 1, 1]], [[1, 1, 1], [2, 2, 2]]
    replay.read(batch(1, (FrameType.APPEND, 1, {}), (FrameType.TRANSACTION, 0, {"members": second})))
    replay.read(batch(1, (FrameType.TRANSACTION_DECISION, 0, {"first": 1, "last": 1, "undone": False})))
    replay.read(batch(2, (FrameType.APPEND, 1, {}), (FrameType.TRANSACTION, 0, {"members": first})))
    replay.read(batch(2, (FrameType.APPEND, 2, {}), (FrameType.TRANSACTION, 0, {"members": second})))
    assert replay.decide()
    assert replay.applied == {1: [(1, False)], 2: [(1, True), (2, False)]}


def member(topic_id: int, *places: tuple[int, int]) -> FrameBatch:
    """The batch of a transaction of one record in each of its topics: `places` are topic ids and seqs."""
    members = [[owner, seq, seq] for owner, seq in places]
    return batch(
        topic_id, (FrameType.APPEND, dict(places)[topic_id], {}), (FrameType.TRANSACTION, 0, {"members": members})
    )


def decision(topic_id: int, seq: int, *, undone: bool) -> FrameBatch:
    return batch(topic_id, (FrameType.TRANSACTION_DECISION, 0, {"first": seq, "last": seq, "undone": undone}))


def test_damage_in_a_shard_keeps_the_other_batches_of_a_transaction() -> None:
    """In a damaged shard no batch waits, whether it is before the damaged range or behind it. The range may have held
    the batch of a member."""
    replay = Replay()
    replay.read(member(1, (1, 1), (2, 1)))
    assert replay.applied == {}
    replay.give_up(1)
    assert replay.applied == {1: [(1, False)]}
    replay.read(member(1, (1, 2), (2, 2)))
    assert replay.applied == {1: [(1, False), (2, False)]}
    replay.read(member(2, (1, 1), (2, 1)))
    replay.read(member(2, (1, 2), (2, 2)))
    replay.read(member(3, (1, 3), (3, 1)))
    assert replay.decide((1, 3))
    assert replay.applied == {1: [(1, False), (2, False)], 2: [(1, False), (2, False)], 3: [(1, False)]}
    assert [(one.topic_id, one.undone) for one in replay.transactions.decisions] == [
        (1, False), (2, False), (1, False), (2, False), (3, False),
    ]  # fmt: skip


Read = Callable[[Replay], object]

UNDONE: dict[str, list[Read]] = {
    "another shard says so": [
        lambda replay: replay.give_up(1),
        lambda replay: replay.read(member(1, (1, 1), (2, 1))),
        lambda replay: replay.read(member(2, (1, 1), (2, 1))),
        lambda replay: replay.read(decision(2, 1, undone=True)),
    ],
    "another shard says so, and the range is behind it": [
        lambda replay: replay.read(member(1, (1, 1), (2, 1))),
        lambda replay: replay.give_up(1),
        lambda replay: replay.read(member(2, (1, 1), (2, 1))),
        lambda replay: replay.read(decision(2, 1, undone=True)),
    ],
    "its own shard says so": [
        lambda replay: replay.give_up(1),
        lambda replay: replay.read(member(1, (1, 1), (2, 1))),
        lambda replay: replay.read(decision(1, 1, undone=True)),
        lambda replay: replay.read(member(2, (1, 1), (2, 1))),
    ],
    "another shard says so and has lost its batch": [
        lambda replay: replay.read(member(1, (1, 1), (2, 1))),
        lambda replay: replay.give_up(1),
        lambda replay: replay.give_up(2),
        lambda replay: replay.read(decision(2, 1, undone=True)),
    ],
    "another shard never had it": [
        lambda replay: replay.give_up(1),
        lambda replay: replay.read(member(1, (1, 1), (2, 1))),
    ],
}


@pytest.mark.parametrize("what", UNDONE)
def test_an_undone_transaction_does_not_count_in_a_damaged_shard(what: str) -> None:
    """The batch is applied before its outcome is known. The second replay knows the outcome from the beginning."""
    replay = Replay()
    for read in UNDONE[what]:
        read(replay)
    assert replay.applied[1] == [(1, False)]
    assert not replay.decide()
    again = Replay(replay.transactions.outcomes)
    for read in UNDONE[what]:
        read(again)
    assert again.decide()
    assert again.applied == {topic_id: [(1, True)] for topic_id in again.applied}
    assert 1 in again.applied
    assert all(one.undone for one in again.transactions.decisions)


def test_a_batch_whose_decision_was_damaged_counts_if_the_others_may_be_stored() -> None:
    """The log of the other shard was cut behind its batch, because the transaction was decided in all shards."""
    replay = Replay()
    replay.read(member(1, (1, 5), (2, 7)))
    replay.give_up(1)
    assert replay.decide((2, 7))
    assert replay.applied == {1: [(5, False)]}
    assert replay.transactions.decisions == [TransactionDecision(1, 5, 5, False)]


def test_a_batch_does_not_count_if_no_damaged_range_can_have_held_the_other_batch() -> None:
    replay = Replay()
    replay.read(member(3, (1, 3), (3, 1)))
    replay.give_up(1)
    assert replay.decide((1, 2))
    assert replay.applied == {3: [(1, True)]}


@pytest.mark.parametrize("stored", [[], [(2, 6)]])
def test_a_batch_does_not_count_if_another_batch_was_never_written(stored: list[tuple[int, int]]) -> None:
    damaged = Replay()
    damaged.give_up(1)
    damaged.read(member(1, (1, 5), (2, 7)))
    assert not damaged.decide(*stored)
    whole = Replay()
    whole.read(member(1, (1, 5), (2, 7)))
    assert whole.decide((2, 7)), "what is not damaged has its Decision frame"
    assert whole.applied == {1: [(5, True)]}


@pytest.mark.parametrize("members", [[], [[1, 2, 1]], [[1, -1, 1]], [["x", 1, 1]], [[1, 1]]])
def test_malformed_members_are_refused(members: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        members_of(members)
