"""Decoding and checking the requests about topics, routers, deletions of records and commits of stages
(`docs/spec/api.md` sections 2, 3, 6 and 7).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar, get_args

import msgspec
from msgspec import UNSET, UnsetType

from topics.config import Settings
from topics.engine.topic_states import TopicOrder
from topics.errors import ApiError, invalid
from topics.http.requests.append_requests import check_key
from topics.http.requests.condition_requests import ConditionFields, check_members
from topics.http.requests.filter_fields import check_filter
from topics.http.requests.json_checks import check_depth, check_utf8, decode_json, not_u64
from topics.http.requests.query_strings import Query
from topics.http.requests.read_requests import check_match
from topics.log.names import check_router_name, check_stage_name, check_topic_name
from topics.log.tag_match import TagMatch, parse_match
from topics.model import (
    MAX_U64,
    DeleteRequest,
    RouterPatch,
    TopicConfigPatch,
    TopicType,
)
from topics.routing.router import match_of

MAX_STAGES: Final = 10_000
"""The most stages of one commit. Each task of a large job may write a stage of its own."""

MAX_COMMIT_BYTES: Final = 4 << 20
"""The longest body of a commit, which the names of `MAX_STAGES` stages fit into."""

DEFAULT_PAGE: Final = 100

MAX_PAGE: Final = 1000
"""The most entries on one page of a list."""


class CommitBody(ConditionFields, kw_only=True):
    """The body of a commit of stages."""

    stages: list[str]
    idempotency_key: str


_commit_body: Final = msgspec.json.Decoder(CommitBody)


def decode_commit(raw: bytes) -> CommitBody:
    """The body of a commit of stages, checked (`docs/spec/pipeline.md` section 1). Raises 400."""
    if not raw:
        raise invalid("stages", "is required")
    check_utf8(raw)
    # Refused before it is decoded, which would take much memory. The 1000 are for unknown fields, which are ignored.
    if raw.count(b'"') > 2 * MAX_STAGES + 1000 or raw.count(b",") > MAX_STAGES + 1000:
        raise invalid("stages", f"at most {MAX_STAGES} can be published at once", max=MAX_STAGES)
    body = decode_json(_commit_body, raw)
    check_depth(raw, "body")
    count = len(body.stages)
    if not 1 <= count <= MAX_STAGES:
        raise invalid("stages", f"{count} stages, 1 to {MAX_STAGES} can be published at once", max=MAX_STAGES)
    for i, stage in enumerate(body.stages):
        check_stage_name(stage, f"stages[{i}]")
    if len(set(body.stages)) < count:
        raise invalid("stages", "names a stage twice")
    check_key(body.idempotency_key, "idempotency_key")
    check_members(raw)
    return body


class DeleteSelection(NamedTuple):
    """Which records a deletion removes: those that fulfil all conditions (`DeleteRequest`). None for no condition."""

    before_seq: int | None
    match: TagMatch | None
    after_seq: int | None = None
    before_ts: int | None = None
    dry_run: bool = False


_delete_body: Final = msgspec.json.Decoder(DeleteRequest)

_config_body: Final = msgspec.json.Decoder(TopicConfigPatch)


class _RouterFilter(msgspec.Struct):
    """The filter of a router, as it was written."""

    filter: msgspec.Raw | UnsetType = UNSET


_router_body: Final = msgspec.json.Decoder(RouterPatch)
_router_filter: Final = msgspec.json.Decoder(_RouterFilter)


def decode_delete(raw: bytes, settings: Settings) -> DeleteSelection:
    """The body of a deletion of records, checked (`docs/spec/api.md` section 6). Raises 400."""
    if not raw:
        raise _nothing_selected()
    check_utf8(raw)
    body = decode_json(_delete_body, raw)
    check_depth(raw, "body")
    bounds = {name: getattr(body, name) for name in ("after_seq", "before_seq", "before_ts")}
    given = {name: bound for name, bound in bounds.items() if bound is not UNSET}
    for name, bound in given.items():
        if not 0 <= bound <= MAX_U64:
            raise not_u64(name)
    if not given and body.match is UNSET:
        raise _nothing_selected()
    return DeleteSelection(
        before_seq=given.get("before_seq"),
        match=None if body.match is UNSET else check_match(parse_match(body.match), "match", settings),
        after_seq=given.get("after_seq"),
        before_ts=given.get("before_ts"),
        dry_run=body.dry_run,
    )


def _nothing_selected() -> ApiError:
    return invalid("before_seq", "one of after_seq, before_seq, before_ts and match is required")


def decode_config_patch(raw: bytes) -> TopicConfigPatch:
    """The body of the PUT of a topic (`docs/spec/api.md` section 2). Types and keys are checked here, ranges when the
    patch is merged (`topics.log.topic_config`). Raises 400."""
    if not raw:
        return TopicConfigPatch()
    check_utf8(raw)
    return decode_json(_config_body, raw)


def decode_router_patch(raw: bytes, settings: Settings) -> RouterPatch:
    """The body of the PUT of a router (`docs/spec/api.md` section 7). Types, keys, names and the filter are checked
    here, required fields when the patch is merged (`topics.routing.router`). Raises 400."""
    if not raw:
        return RouterPatch()
    check_utf8(raw)
    patch = decode_json(_router_body, raw)
    check_depth(raw, "body")
    for field, name in (("source", patch.source), ("dest", patch.dest)):
        if name is not UNSET:
            check_topic_name(name, field)
    if patch.filter is UNSET or patch.filter is None:
        return patch
    match = match_of(patch.filter)
    if match is not None:
        check_match(match, "filter", settings)
        return patch
    # Decoded once more, because its numbers have been rounded.
    return msgspec.structs.replace(patch, filter=check_filter(_router_filter.decode(raw).filter))


class ListCursors:
    """The cursors of one list. A cursor is a marker and a name in base64url without padding. The marker says to which
    list the cursor belongs, so that a cursor of another list is refused."""

    __slots__ = ("_check", "_marker")

    def __init__(self, marker: bytes, check: Callable[[str, str], str]) -> None:
        self._marker = marker
        self._check = check

    def encode(self, last: str) -> str:
        """The cursor for the names after `last`."""
        return base64.urlsafe_b64encode(self._marker + last.encode()).rstrip(b"=").decode()

    def decode(self, cursor: str) -> str:
        """The name in a cursor. Raises `400 invalid_request` for a text that `encode` cannot have made."""
        try:
            raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
            name = self._check(raw.removeprefix(self._marker).decode(), "cursor")
        except (ValueError, binascii.Error, ApiError):
            raise invalid("cursor", "is not a cursor of this list") from None
        if self.encode(name) != cursor.rstrip("="):
            raise invalid("cursor", "is not a cursor of this list")
        return name


TOPIC_TYPES: Final[tuple[TopicType, ...]] = get_args(TopicType)
TOPIC_ORDERS: Final[tuple[TopicOrder, ...]] = get_args(TopicOrder)
T = TypeVar("T", bound=str)

MAX_ID_DIGITS: Final = 20

TOPIC_CURSORS: Final = ListCursors(b"t:", check_topic_name)

ROUTER_CURSORS: Final = ListCursors(b"r:", check_router_name)


def check_pair(text: str, field: str) -> str:
    """Check the name of a topic and of something that it has, with a slash between them. Raises 400."""
    topic, _, name = text.partition("/")
    check_topic_name(topic, field)
    check_topic_name(name, field)
    return text


def pair_of(after: str | None) -> tuple[str, str] | None:
    """The topic and the name in a cursor that `check_pair` has checked."""
    if after is None:
        return None
    topic, _, name = after.partition("/")
    return topic, name


def check_connection_id(text: str, field: str) -> str:
    """Check the number of an open connection. Raises 400."""
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_ID_DIGITS):
        raise invalid(field, "is not the number of a connection")
    return text


CONNECTION_CURSORS: Final = ListCursors(b"n:", check_connection_id)


class ListPage(NamedTuple):
    """Which part of a list is asked for: names that begin with `prefix` and come after `after`, at most `page_size` of
    them. `touch`: the request counts as a use of the topics. `kind`: only topics of this type. `sort`: not in the order
    of names, and without a cursor."""

    prefix: str
    after: str | None
    page_size: int
    touch: bool = False
    kind: TopicType | None = None
    sort: TopicOrder | None = None


def decode_list_query(query: bytes) -> ListPage:
    """`prefix`, `cursor`, `page_size`, `touch`, `type` and `sort` of a list of topics (`docs/spec/api.md` sections 1
    and 3). Raises 400."""
    values = Query(query)
    page = page_of(values, TOPIC_CURSORS, touch=values.boolean("touch", False))
    kind = _choice(values, "type", TOPIC_TYPES)
    sort = _choice(values, "sort", TOPIC_ORDERS)
    if sort is not None and page.after is not None:
        raise invalid("cursor", "a list with sort has one page")
    return page._replace(kind=kind, sort=sort)


def _choice(values: Query, name: str, choices: tuple[T, ...]) -> T | None:
    if not values.all(name):
        return None
    text = values.text(name, "")
    for choice in choices:
        if choice == text:
            return choice
    raise invalid(name, f"must be one of {', '.join(map(str, choices))}")


class RouterSelection(NamedTuple):
    """Which routers are asked for: a page of those from `source` and to `dest`; None for any."""

    page: ListPage
    source: str | None
    dest: str | None


def decode_router_list_query(query: bytes) -> RouterSelection:
    """`prefix`, `source`, `dest`, `cursor` and `page_size` of a list of routers (`docs/spec/api.md` sections 1 and 7).
    Raises 400."""
    values = Query(query)
    return RouterSelection(
        page=page_of(values, ROUTER_CURSORS), source=values.topic("source"), dest=values.topic("dest")
    )


def page_of(values: Query, cursors: ListCursors, *, touch: bool = False) -> ListPage:
    """`prefix`, `cursor` and `page_size` of a list. Raises 400."""
    cursor = values.text("cursor", "")
    return ListPage(
        prefix=values.text("prefix", ""),
        after=cursors.decode(cursor) if cursor else None,
        page_size=max(1, min(MAX_PAGE, values.integer("page_size", DEFAULT_PAGE, signed=True))),
        touch=touch,
    )
