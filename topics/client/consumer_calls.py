"""The calls on named consumers as values (`docs/spec/consumers.md` section 3). As `topics.client.calls` is, without
I/O; the functions are methods of both clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from topics.client import results
from topics.client.calls import ClientCall, Filter, encode, filter_json, target, topic_path

Place = Literal["earliest", "tail"] | Mapping[str, int]
"""`earliest`, `tail`, `{"seq": n}` (n is done), or `{"ts": ms}` (the first record of that time or later)."""


def _path(topic: str, consumer: str, *more: str) -> str:
    return topic_path(topic, "consumers", consumer, *more)


def _body(**fields: object) -> bytes:
    return encode({name: value for name, value in fields.items() if value is not None})


def create_consumer(
    topic: str, consumer: str, *, from_: Place = "tail", ttl_ms: int | None = None, filter: Filter | None = None
) -> ClientCall[results.ConsumerState]:
    """Create a consumer of a topic, a position that the daemon keeps. `from_` is where a new one begins. One that
    exists stays where it is, and gets what is given. `ttl_ms`: unused for so long it is deleted; 0: never. `filter`:
    its reads that begin later return only records that match; `"null"`: all records again. Raises NotFound where there
    is no such topic."""
    body = _body(**{"from": from_}, ttl_ms=ttl_ms, filter=filter_json(filter))
    return ClientCall(
        method="PUT", target=_path(topic, consumer), answer=results.ConsumerState, body=body, repeatable=True
    )


def consumer(topic: str, consumer: str) -> ClientCall[results.ConsumerState]:
    """Where a consumer is, and who owns it."""
    return ClientCall(method="GET", target=_path(topic, consumer), answer=results.ConsumerState, repeatable=True)


def consumer_page(
    topic: str, *, prefix: str = "", page_size: int = 100, cursor: str | None = None
) -> ClientCall[results.ConsumerPage]:
    """One page of the consumers of a topic whose names begin with `prefix`, in the order of names. `cursor` is
    `next_cursor` of the page before; None: the first page."""
    where = target(topic_path(topic, "consumers"), prefix=prefix or None, page_size=page_size, cursor=cursor)
    return ClientCall(method="GET", target=where, answer=results.ConsumerPage, repeatable=True)


def delete_consumer(topic: str, consumer: str) -> ClientCall[results.ConsumerDeletion]:
    """Delete a consumer. The records stay."""
    return ClientCall(method="DELETE", target=_path(topic, consumer), answer=results.ConsumerDeletion, repeatable=False)


def commit_consumer(
    topic: str, consumer: str, seq: int, *, generation: int | None = None, epoch: int | None = None
) -> ClientCall[results.ConsumerMoved]:
    """Note that a consumer has finished everything up to `seq`. While it is owned, `generation` must be that of its
    owner. Raises Conflict for another generation, and for another `epoch`: the topic was made again."""
    body = _body(seq=seq, generation=generation, epoch=epoch)
    where = _path(topic, consumer, "commit")
    return ClientCall(method="POST", target=where, answer=results.ConsumerMoved, body=body, repeatable=True)


def seek_consumer(
    topic: str, consumer: str, to: Place, *, generation: int | None = None, epoch: int | None = None
) -> ClientCall[results.ConsumerMoved]:
    """Move a consumer to any place of its topic, also back. Raises as `commit_consumer` does."""
    place: dict[str, Any] = {"to": to} if isinstance(to, str) else dict(to)
    body = _body(**place, generation=generation, epoch=epoch)
    where = _path(topic, consumer, "seek")
    return ClientCall(method="POST", target=where, answer=results.ConsumerMoved, body=body, repeatable=True)


def acquire_consumer(
    topic: str, consumer: str, owner: str, *, lease_ms: int = 30_000
) -> ClientCall[results.ConsumerAcquired]:
    """Make `owner` the only one who may move a consumer: nobody else may acquire it for `lease_ms`. The same owner
    renews. Raises Conflict while another owner's lease runs."""
    body = _body(owner=owner, lease_ms=lease_ms)
    where = _path(topic, consumer, "acquire")
    return ClientCall(method="POST", target=where, answer=results.ConsumerAcquired, body=body, repeatable=True)


def release_consumer(topic: str, consumer: str, generation: int) -> ClientCall[results.ConsumerReleased]:
    """Give up a consumer that is owned under this generation."""
    body = _body(generation=generation)
    where = _path(topic, consumer, "release")
    return ClientCall(method="POST", target=where, answer=results.ConsumerReleased, body=body, repeatable=True)


def read_consumer(
    topic: str,
    consumer: str,
    *,
    commit_seq: int | None = None,
    generation: int | None = None,
    epoch: int | None = None,
    ack: Literal["before"] | None = None,
    limit: int = 256,
    wait_ms: int = 0,
) -> ClientCall[results.Page]:
    """One page of at most `limit` records behind the position of a consumer.

    With `commit_seq` the consumer is committed first. With `ack="before"` what the page has counts as finished before
    it is sent (at most once); such a call is not repeated when its outcome is unknown.
    """
    where = target(
        topic_path(topic, "diff"),
        consumer=consumer,
        commit_seq=commit_seq,
        generation=generation,
        epoch=epoch,
        ack=ack,
        limit=limit,
        include_tags=True,
        wait_ms=wait_ms or None,
    )
    return ClientCall(
        method="GET", reads=False, target=where, answer=results.Page, repeatable=ack is None, waits=wait_ms / 1000
    )
