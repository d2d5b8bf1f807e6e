"""The types of the answers of the calls for the newest records of tags."""

from __future__ import annotations

from msgspec import Struct

from topics.client.results import Record


class LatestRecord(Struct, kw_only=True):
    """The newest record of a tag."""

    topic: str
    epoch: int
    record: Record
    head_seq: int
    """The head of the topic when the record was the newest one."""


class LatestPage(Struct, kw_only=True):
    """A page of the newest records of tags, in the order of the tags."""

    topic: str
    epoch: int
    records: list[Record]
    """May be empty although there is another page: `next_cursor` decides."""
    head_seq: int
    """The head of the topic when the page was begun. The changes that the pages may lack are behind that of the first
    page."""
    next_cursor: str | None = None
    """The `cursor` of the next page; None on the last page."""
