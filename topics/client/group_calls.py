"""The calls on groups of a log as values (`docs/spec/consumers.md` section 4). As `topics.client.calls` is, without
I/O; the functions are methods of both clients. Claims, acks and the like are those of queues, with `group=`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from topics.client import results
from topics.client.calls import ClientCall, Filter, encode, filter_json, target, topic_path
from topics.client.consumer_calls import Place


def create_group(
    topic: str,
    group: str,
    *,
    from_: Place = "tail",
    filter: Filter | None = None,
    lease_ms: int | None = None,
    claim_jitter_ms: int | None = None,
    max_deliveries: int | None = None,
    dead_letter: str | None = None,
    completed: str | None = None,
    leases_durable: bool | None = None,
    max_unfinished: int | None = None,
    retry: Mapping[str, object] | None = None,
    max_in_flight: int | None = None,
    rate: Mapping[str, int] | None = None,
    order_by: Literal["tag", "node", ""] | None = None,
    max_in_flight_per_key: Mapping[str, object] | None = None,
) -> ClientCall[results.GroupState]:
    """Create a group of a log, or change it. `from_` is where a new one begins; one that exists stays where it is. What
    is None stays as it is. `filter`: only records that match; `"null"`: all records again. `order_by`: records of one
    tag or node are given out one at a time, in their order; `max_in_flight_per_key`: at most `max` of them at a time.
    `dead_letter=""` takes the dead-letter topic away, `completed=""` the topic to which results of acks are delivered,
    and so do `order_by=""`, `retry={}`, `rate={}` and `max_in_flight_per_key={}` these. Raises NotFound where there is
    no such topic, and Conflict for a queue."""
    given: dict[str, object] = {
        "filter": filter_json(filter),
        "lease_ms": lease_ms,
        "claim_jitter_ms": claim_jitter_ms,
        "max_deliveries": max_deliveries,
        "leases_durable": leases_durable,
        "max_unfinished": max_unfinished,
        "max_in_flight": max_in_flight,
    }
    body: dict[str, object] = {"from": from_, **{name: value for name, value in given.items() if value is not None}}
    objects = (("retry", retry), ("rate", rate), ("max_in_flight_per_key", max_in_flight_per_key))
    body |= {name: dict(value) or None for name, value in objects if value is not None}
    names = (("dead_letter", dead_letter), ("completed", completed), ("order_by", order_by))
    body |= {name: value or None for name, value in names if value is not None}
    return ClientCall(
        method="PUT",
        target=topic_path(topic, "groups", group),
        answer=results.GroupState,
        body=encode(body),
        repeatable=True,
    )


def group(topic: str, group: str) -> ClientCall[results.GroupState]:
    """How far a group is, and who holds how much."""
    return ClientCall(
        method="GET", target=topic_path(topic, "groups", group), answer=results.GroupState, repeatable=True
    )


def group_page(
    topic: str, *, prefix: str = "", page_size: int = 100, cursor: str | None = None
) -> ClientCall[results.GroupPage]:
    """One page of the groups of a log whose names begin with `prefix`, in the order of names. `cursor` is `next_cursor`
    of the page before; None: the first page."""
    where = target(topic_path(topic, "groups"), prefix=prefix or None, page_size=page_size, cursor=cursor)
    return ClientCall(method="GET", target=where, answer=results.GroupPage, repeatable=True)


def delete_group(topic: str, group: str) -> ClientCall[results.GroupDeletion]:
    """Delete a group; its leases end. The records stay."""
    return ClientCall(
        method="DELETE", target=topic_path(topic, "groups", group), answer=results.GroupDeletion, repeatable=False
    )
