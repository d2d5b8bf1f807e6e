"""Proofs at a standby that has not got as far as its reader, and at an owner that is asked for too much."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from topics.engine.evidence.evidence_calls import EvidenceCalls
from topics.engine.reach import Reach
from topics.engine.registry import EngineStatus
from topics.errors import ApiError
from topics.evidence.merkle import Leaves
from topics.evidence.topic_tree import TopicTree, TreeIdentity
from topics.storage.wal.write_right import WriteRight
from topics.telemetry.figures import StandbyFigures

pytestmark = pytest.mark.trio


def calls(size: int, *, follows: bool) -> EvidenceCalls:
    """Those of a daemon with the topic `a`, whose tree begins with seq 3 and has so many leaves."""
    tree = TopicTree(TreeIdentity("0" * 32, 3, "key"))
    if size:
        tree.publish(3, cast(Any, Leaves(bytes(32 * size))))
    head_seq = 2 + size
    topic = SimpleNamespace(
        id=5, name="a", tree=tree, synced_seq=head_seq, bucket_seq=head_seq, log=SimpleNamespace(head_seq=head_seq)
    )
    registry: Any = SimpleNamespace(
        topics={"a": topic}, topic=lambda _: topic, next_topic_id=6, has_bucket=False, follows=follows
    )
    status = EngineStatus(0)
    if follows:
        status.following = lambda: cast("StandbyFigures", None)
    store: Any = SimpleNamespace(evidence_key=SimpleNamespace(has_bucket=follows))
    reach = Reach(registry, status, WriteRight())
    return EvidenceCalls(registry, store, reach, fs=cast(Any, None), offload=cast(Any, None))


async def refused(call: Awaitable[Any]) -> str:
    """The code with which a call is refused, and the field."""
    with pytest.raises(ApiError) as error:
        await call
    return " ".join((error.value.code, *filter(None, [error.value.detail.get("field")])))


Ask = Callable[[EvidenceCalls], Awaitable[Any]]

BEYOND: list[tuple[Ask, str]] = [
    (lambda at: at.inclusion("a", 5, None), "record_not_found"),
    (lambda at: at.inclusion("a", 5, 3), "invalid_request size"),
    (lambda at: at.inclusion("a", 3, 3), "invalid_request size"),
    (lambda at: at.consistency("a", 3, None), "invalid_request from"),
    (lambda at: at.consistency("a", 1, 3), "invalid_request to"),
]
"""Calls about more than two leaves, and how an owner with two refuses them."""

NOWHERE: list[tuple[Ask, str]] = [
    (lambda at: at.inclusion("a", 2, None), "record_not_found"),
    (lambda at: at.inclusion("a", 3, 0), "invalid_request size"),
    (lambda at: at.consistency("a", 0, 1), "invalid_request from"),
    (lambda at: at.consistency("a", 2, 1), "invalid_request from"),
]
"""Calls that no daemon can answer, however far it is."""


@pytest.mark.parametrize("case", range(len(BEYOND)))
async def test_a_standby_says_that_it_is_behind_where_an_owner_says_that_it_is_too_much(case: int) -> None:
    ask, error = BEYOND[case]
    assert await refused(ask(calls(2, follows=False))) == error
    assert await refused(ask(calls(2, follows=True))) == "behind"


@pytest.mark.parametrize("case", range(len(NOWHERE)))
async def test_what_cannot_be_proved_is_refused_by_a_standby_as_by_an_owner(case: int) -> None:
    ask, error = NOWHERE[case]
    for follows in (False, True):
        assert await refused(ask(calls(2, follows=follows))) == error


async def test_an_empty_tree_has_no_record() -> None:
    """A size that was not given is not named as wrong."""
    empty = calls(0, follows=False)
    assert await refused(empty.inclusion("a", 3, None)) == "record_not_found"
    assert await refused(empty.consistency("a", 1, None)) == "invalid_request from"
