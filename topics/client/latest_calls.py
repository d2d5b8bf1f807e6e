"""The calls for the newest records of tags (`docs/spec/evidence.md` section 3). As `topics.client.calls` is, without
I/O; the functions are methods of both clients."""

from __future__ import annotations

from collections.abc import Iterable

from topics.client.calls import ClientCall, Filter, target, topic_path
from topics.client.latest_results import LatestPage, LatestRecord
from topics.client.results import Record
from topics.client.streams.follower import Position


def latest(topic: str, tag: str, *, include_meta: bool = True, touch: bool = True) -> ClientCall[LatestRecord]:
    """The newest record of a tag.

    Raises NotFound if there is none; the `reason` in `detail` of the error is `none`, or `null` if the data of the
    newest record is null. With `touch=False` the call does not count as a use of the topic.
    """
    where = target(
        topic_path(topic, "latest"),
        tag=tag,
        include_meta=None if include_meta else False,
        touch=None if touch else False,
    )
    return ClientCall(method="GET", target=where, answer=LatestRecord, repeatable=True)


def latest_page(
    topic: str,
    prefix: str = "",
    *,
    page_size: int = 100,
    cursor: str | None = None,
    include_tags: bool = True,
    include_meta: bool = True,
    max_batch_bytes: int | None = None,
    touch: bool = True,
) -> ClientCall[LatestPage]:
    """One page of the newest records of the tags that begin with `prefix`, in the order of the tags, without those
    whose data is null. `all_latest` fetches all pages. With `touch=False` the call does not count as a use of the
    topic."""
    where = target(
        topic_path(topic, "latest"),
        prefix=prefix,
        page_size=page_size,
        cursor=cursor,
        include_tags=None if include_tags else False,
        include_meta=None if include_meta else False,
        max_batch_bytes=max_batch_bytes,
        touch=None if touch else False,
    )
    return ClientCall(method="GET", target=where, answer=LatestPage, repeatable=True)


class TablePages:
    """The pages of a table (`topics.client.pages.Pages`), and where its changes begin."""

    def __init__(self, topic: str, prefix: str, page_size: int) -> None:
        self.topic = topic
        self.prefix = prefix
        self.position: Position | None = None
        """The head at the first page: the changes behind it make the table complete. None before the first page."""
        self._page_size = page_size
        self._call: ClientCall[LatestPage] | None = latest_page(topic, prefix, page_size=page_size)

    @property
    def filter(self) -> Filter | None:
        """The filter for its changes; None for all."""
        return ["tag", "Glob", f"{self.prefix}*"] if self.prefix else None

    def next_call(self) -> ClientCall[LatestPage] | None:
        """The call for the next page; None after the last page."""
        return self._call

    def values(self, page: LatestPage) -> Iterable[Record]:
        """The records of a page."""
        if self.position is None:
            self.position = Position(page.head_seq, page.epoch)
        self._call = None
        if page.next_cursor is not None:
            self._call = latest_page(self.topic, self.prefix, page_size=self._page_size, cursor=page.next_cursor)
        for record in page.records:
            record.topic = self.topic
        return page.records


def all_latest(topic: str, prefix: str = "", *, page_size: int = 1000) -> TablePages:
    """The newest record of every tag that begins with `prefix`, in the order of the tags, without those whose data is
    null, fetched page by page. The topic may change meanwhile: `follow_table` goes on with the changes."""
    return TablePages(topic, prefix, page_size)


def follow_table(topic: str, prefix: str = "", *, page_size: int = 1000) -> TablePages:
    """The newest record of every tag that begins with `prefix`, then a CaughtUp, and then every change, without end: a
    table and its changes, without a gap between them.

    A record replaces what the table has under its tag; one whose data is None removes it. Some changes may come that
    the table has already. A Tombstone means that changes were lost: begin again with an empty table.
    """
    return TablePages(topic, prefix, page_size)
