"""`Consumption`: what is finished when, and what happens when somebody else gets the consumer. Without I/O."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from topics.client import results
from topics.client.calls import ClientCall
from topics.client.consumption import Consumption, consume
from topics.client.errors import Conflict, NotFound


def page(*seqs: int, end: int | None = None) -> results.Page:
    records = [{"$seq": seq, "$ts": 1, "data": seq} for seq in seqs]
    body = {
        "topic": "t", "epoch": 3, "records": records, "next_from_seq": end or seqs[-1], "head_seq": 99,
        "earliest_seq": 1, "caught_up": False, "tombstone": None, "lag": 1,
    }  # fmt: skip
    return msgspec.json.decode(msgspec.json.encode(body), type=results.Page)


def acquired(generation: int) -> results.ConsumerAcquired:
    return results.ConsumerAcquired(topic="t", consumer="c", epoch=3, generation=generation, deadline=0)


def state() -> results.ConsumerState:
    return results.ConsumerState(
        topic="t", consumer="c", epoch=3, committed_seq=0, lag=0, last_commit_ts=None, owner=None, generation=0,
        deadline=None, ttl_ms=0,
    )  # fmt: skip


def began(*seqs: int) -> Consumption:
    """One that owns its consumer and has these records in hand."""
    machine = consume("t", "c", lease_ms=30_000, owner="me")
    for answer in (state(), acquired(1), page(*seqs)):
        assert machine.take(0) is None
        machine.next_call(0)
        machine.answered(answer)
    return machine


def body_of(call: ClientCall[Any]) -> Any:
    return json.loads(call.body or b"{}")


def taken(machine: Consumption, now: float) -> int | None:
    value = machine.take(now)
    assert not isinstance(value, results.Tombstone)
    return None if value is None else value.seq


def test_a_record_is_finished_when_the_next_one_is_taken() -> None:
    machine = began(1, 2, 3)
    assert [taken(machine, 0.1), taken(machine, 0.2)] == [1, 2]
    commit, release = machine.closing_calls()
    assert body_of(commit) == {"seq": 1, "generation": 1, "epoch": 3}
    assert release.target.endswith("/release")
    assert [taken(machine, 0.3), taken(machine, 0.4)] == [3, None]
    assert "commit_seq=3&generation=1&epoch=3" in machine.next_call(0.4).target


@pytest.mark.parametrize(
    ("given", "sent"), [(["tag", "Eq", "x"], ["tag", "Eq", "x"]), ('["tag"]', ["tag"]), ("null", None)]
)
def test_a_filter_is_put_each_time_the_consumer_is_made(given: Any, sent: Any) -> None:
    machine = consume("t", "c", owner="me", filter=given)
    assert body_of(machine.next_call(0)) == {"from": "tail", "filter": sent}
    machine.answered(state())
    machine.next_call(0)
    machine.failed(Conflict(409, "fenced", "", {"epoch": 4}))
    assert body_of(machine.next_call(0)) == {"from": "earliest", "filter": sent}
    assert "filter" not in body_of(consume("t", "c").next_call(0))


def test_what_is_finished_is_committed_after_a_while_and_the_lease_is_renewed() -> None:
    machine = began(1, 2, 3)
    assert taken(machine, 0.1) == 1
    assert taken(machine, 2) is None
    assert body_of(machine.next_call(2)) == {"seq": 1, "generation": 1, "epoch": 3}
    machine.answered(None)
    assert taken(machine, 2) == 2
    assert taken(machine, 10.5) is None
    assert machine.next_call(10.5).target.endswith("/acquire")
    machine.answered(acquired(1))
    assert taken(machine, 10.5) is None
    assert machine.next_call(10.5).target.endswith("/commit")
    machine.answered(None)
    assert taken(machine, 10.6) == 3


def test_who_is_fenced_drops_what_it_has_and_waits_until_it_owns_the_consumer_again() -> None:
    machine = began(1, 2, 3)
    assert taken(machine, 0) == 1
    taken(machine, 2)
    machine.next_call(2)
    assert machine.failed(Conflict(409, "fenced", "", {"generation": 2})) == 0
    assert list(machine.closing_calls()) == []
    assert taken(machine, 2) is None
    assert machine.next_call(2).target.endswith("/acquire")
    assert machine.failed(Conflict(409, "consumer_owned", "", {})) == 1
    assert machine.next_call(3).target.endswith("/acquire")
    machine.answered(acquired(3))
    assert "commit_seq=0&generation=3" in machine.next_call(3).target


def test_a_topic_that_is_made_again_is_read_from_its_beginning_and_a_deleted_consumer_is_an_error() -> None:
    machine = began(1)
    assert [taken(machine, 0), taken(machine, 0)] == [1, None]
    machine.next_call(0)
    machine.failed(Conflict(409, "fenced", "", {"epoch": 4}))
    assert body_of(machine.next_call(0)) == {"from": "earliest"}
    with pytest.raises(NotFound):
        machine.failed(NotFound(404, "consumer_not_found", "", {}))


def test_a_page_without_records_moves_the_position() -> None:
    machine = began(1)
    assert [taken(machine, 0), taken(machine, 0)] == [1, None]
    machine.next_call(0)
    empty = page(1)
    empty.records, empty.next_from_seq = [], 7
    machine.answered(empty)
    assert "commit_seq=7" in machine.next_call(0).target
