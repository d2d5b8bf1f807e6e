"""Lists and reads that take one call for each page: which page comes next, and what a page holds.

Pure: no I/O. The clients make the calls. The functions `read`, `list_all` and `all_routers` are methods of both
clients, with their parameters and docstrings; there they return iterators over the values of all pages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, Literal, Protocol, TypeVar

from topics.client import (
    calls,
    consumer_calls,
    group_calls,
    job_calls,
    results,
    schedule_calls,
)
from topics.client.calls import ClientCall
from topics.client.job_results import ListedJob
from topics.client.results import Record, Tombstone

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Pages(Protocol[T_co]):
    """A list that is fetched page by page: make `next_call`, hand its result to `values`, and so on."""

    def next_call(self) -> ClientCall[Any] | None:
        """The call for the next page; None after the last page."""
        ...

    def values(self, page: Any) -> Iterable[T_co]:
        """Return the values of a page. Take all of them before `next_call`."""
        ...


def read(
    topic: str,
    from_seq: int = 0,
    *,
    to_seq: int | None = None,
    limit: int = 1000,
    node: str | Iterable[str] = (),
    include_tags: bool = True,
    include_meta: bool = True,
    filter: calls.Filter | None = None,
) -> Pages[Record | Tombstone]:
    """The records of a topic from after `from_seq` up to and including `to_seq` (None: until there is no more), fetched
    in pages of `limit` records.

    Where records are gone that nobody has deleted, a Tombstone stands in their place. `node` leaves out what these
    nodes have appended, `filter` what does not match it. Raises NotFound where there is no such topic.
    """
    nodes = (node,) if isinstance(node, str) else tuple(node)

    def page(position: int, epoch: int | None) -> ClientCall[results.Page]:
        return calls.diff(
            topic,
            position,
            epoch=epoch,
            limit=limit,
            node=nodes,
            include_tags=include_tags,
            include_meta=include_meta,
            filter=filter,
        )

    return _RecordPages(page, from_seq, to_seq)


def list_all(*, prefix: str = "", type: Literal["log", "queue"] | None = None) -> Pages[results.TopicSummary]:
    """Every topic whose name begins with `prefix`, in the order of names, fetched page by page; with `type` only topics
    of this type."""
    return _CursorPages(
        lambda cursor: calls.topic_page(prefix=prefix, page_size=1000, cursor=cursor, type=type),
        lambda page: page.topics,
    )


def all_routers(*, prefix: str = "", source: str | None = None, dest: str | None = None) -> Pages[results.RouterState]:
    """Every router whose name begins with `prefix`, in the order of names, fetched page by page; with `source` or
    `dest` only the routers from or to that topic."""
    return _CursorPages(
        lambda cursor: calls.router_page(prefix=prefix, source=source, dest=dest, page_size=1000, cursor=cursor),
        lambda page: page.routers,
    )


def all_consumers(topic: str, *, prefix: str = "") -> Pages[results.ConsumerState]:
    """Every consumer of a topic whose name begins with `prefix`, in the order of names, fetched page by page."""
    return _CursorPages(
        lambda cursor: consumer_calls.consumer_page(topic, prefix=prefix, page_size=1000, cursor=cursor),
        lambda page: page.consumers,
    )


def all_schedules(*, prefix: str = "") -> Pages[results.ScheduleState]:
    """Every schedule whose name begins with `prefix`, in the order of names, fetched page by page."""
    return _CursorPages(
        lambda cursor: schedule_calls.schedule_page(prefix=prefix, page_size=1000, cursor=cursor),
        lambda page: page.schedules,
    )


def all_groups(topic: str, *, prefix: str = "") -> Pages[results.GroupState]:
    """Every group of a log whose name begins with `prefix`, in the order of names, fetched page by page."""
    return _CursorPages(
        lambda cursor: group_calls.group_page(topic, prefix=prefix, page_size=1000, cursor=cursor),
        lambda page: page.groups,
    )


def all_jobs(
    topic: str,
    *,
    state: job_calls.JobState | None = None,
    filter: calls.Filter | None = None,
    group: str | None = None,
) -> Pages[ListedJob]:
    """Every job of a queue, or with `group` every record that a group has not finished, in the order of their seqs,
    fetched page by page: those in `state` (None: in any but "dead") that match `filter`. Jobs that change meanwhile may
    be missing, or be there as they were."""
    return _CursorPages(
        lambda cursor: job_calls.job_page(
            topic, state=state, filter=filter, page_size=1000, cursor=cursor, group=group
        ),
        lambda page: page.jobs,
    )


class _RecordPages:
    def __init__(
        self, page: Callable[[int, int | None], ClientCall[results.Page]], from_seq: int, to_seq: int | None
    ) -> None:
        self._page = page
        self._to_seq = to_seq
        self._next: tuple[int, int | None] | None = (from_seq, None)
        """The position and the epoch of the next page; the epoch is not known before the first page."""

    def next_call(self) -> ClientCall[results.Page] | None:
        return None if self._next is None else self._page(*self._next)

    def values(self, page: results.Page) -> Iterator[Record | Tombstone]:
        yield from calls.values_of(page, self._to_seq)
        position = page.next_from_seq
        is_last = page.caught_up or (self._to_seq is not None and position >= self._to_seq)
        self._next = None if is_last else (position, page.epoch)


class _CursorPage(Protocol):
    next_cursor: str | None


_P = TypeVar("_P", bound=_CursorPage)


class _CursorPages(Generic[_P, T]):
    def __init__(self, page: Callable[[str | None], ClientCall[_P]], items: Callable[[_P], Iterable[T]]) -> None:
        self._page = page
        self._items = items
        self._call: ClientCall[_P] | None = page(None)

    def next_call(self) -> ClientCall[_P] | None:
        return self._call

    def values(self, page: _P) -> Iterable[T]:
        self._call = None if page.next_cursor is None else self._page(page.next_cursor)
        return self._items(page)
