"""Decoding and checking reads of the newest records of tags (`docs/spec/evidence.md` section 3)."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from topics.config import Settings
from topics.errors import invalid
from topics.http.requests.json_checks import check_text
from topics.http.requests.query_strings import Query
from topics.http.requests.read_requests import DEFAULT_BATCH_BYTES, MAX_BATCH_BYTES
from topics.http.requests.topic_requests import DEFAULT_PAGE, ListCursors, page_of
from topics.model import LatestRequest


class LatestQuery(msgspec.Struct, kw_only=True):
    """The query parameters, for the description of the interface."""

    tag: str | None = None
    prefix: str | None = None
    page_size: int = DEFAULT_PAGE
    cursor: str = ""
    include_tags: bool = True
    include_meta: bool = True
    max_batch_bytes: int = DEFAULT_BATCH_BYTES
    touch: bool = True


class LatestSelection(NamedTuple):
    """The tag that is asked for, None for a page of those with a prefix."""

    tag: str | None
    request: LatestRequest


def decode_latest(query: bytes, settings: Settings) -> LatestSelection:
    """The query: exactly one of `tag` and `prefix`. Raises 400."""
    values = Query(query)
    tag = values.text("tag", "") if values.all("tag") else None
    if (tag is None) is not bool(values.all("prefix")):
        raise invalid("prefix", "exactly one of tag and prefix is needed")
    page = page_of(values, TAG_CURSORS)
    if tag is not None:
        check_text("tag", tag, settings.max_tag_bytes)
    elif page.prefix:
        check_text("prefix", page.prefix, settings.max_tag_bytes)
    if tag is not None and page.after is not None:
        raise invalid("cursor", "needs a prefix")
    most = values.integer("max_batch_bytes", DEFAULT_BATCH_BYTES)
    return LatestSelection(
        tag,
        LatestRequest(
            prefix=page.prefix,
            after=page.after,
            page_size=page.page_size,
            max_batch_bytes=min(most or DEFAULT_BATCH_BYTES, MAX_BATCH_BYTES),
            include_tags=values.boolean("include_tags", True),
            include_meta=values.boolean("include_meta", True),
            touch=values.boolean("touch", True),
        ),
    )


def _check_tag(tag: str, field: str) -> str:
    if not tag:
        raise invalid(field, "is empty")
    return tag


TAG_CURSORS: Final = ListCursors(b"l:", _check_tag)
