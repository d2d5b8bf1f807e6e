"""Decoding and checking the calls about groups (`docs/spec/consumers.md` section 4). Without I/O. Claims, acks and the
like have the bodies of queues (`queue_requests`)."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from topics.errors import invalid
from topics.groups.group_events import MAX_UNFINISHED, TERMS
from topics.http.requests.consumer_requests import Place, SeqPlace, place_of
from topics.http.requests.filter_fields import check_filter
from topics.http.requests.json_checks import check_depth, check_utf8, decode_json
from topics.http.requests.query_strings import Query
from topics.http.requests.topic_requests import ListCursors, ListPage, check_pair, page_of
from topics.log.names import check_topic_name
from topics.model import ClaimRate, GroupPatch, KeyLimitConfig, OrderBy, RetryPolicy, TopicConfigPatch

GROUP_CURSORS: Final = ListCursors(b"g:", check_topic_name)


class PutGroupBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of the PUT of a group, before checks."""

    start: Place | SeqPlace = msgspec.field(default="tail", name="from")
    filter: msgspec.Raw | UnsetType = UNSET
    lease_ms: int | UnsetType = UNSET
    claim_jitter_ms: int | UnsetType = UNSET
    max_deliveries: int | UnsetType = UNSET
    dead_letter: str | UnsetType | None = UNSET
    completed: str | UnsetType | None = UNSET
    leases_durable: bool | UnsetType = UNSET
    retry: RetryPolicy | UnsetType | None = UNSET
    max_in_flight: int | UnsetType = UNSET
    rate: ClaimRate | UnsetType | None = UNSET
    order_by: OrderBy | UnsetType | None = UNSET
    max_in_flight_per_key: KeyLimitConfig | UnsetType | None = UNSET
    max_unfinished: int | UnsetType = UNSET


_put: Final = msgspec.json.Decoder(PutGroupBody)


def decode_put_group(raw: bytes) -> GroupPatch:
    """The body of the PUT of a group. Fields that a queue has too are checked when they are merged. Raises 400."""
    body = PutGroupBody()
    if raw:
        check_utf8(raw)
        body = decode_json(_put, raw)
        check_depth(raw, "body")
    if body.max_unfinished is not UNSET and not 1 <= body.max_unfinished <= MAX_UNFINISHED:
        raise invalid("max_unfinished", f"must be between 1 and {MAX_UNFINISHED}", min=1, max=MAX_UNFINISHED)
    return GroupPatch(
        start=place_of(body.start),
        terms=TopicConfigPatch(**{name: getattr(body, name) for name in TERMS}),
        filter=UNSET if body.filter is UNSET else check_filter(body.filter),
        max_unfinished=body.max_unfinished,
    )


ALL_GROUP_CURSORS: Final = ListCursors(b"G:", check_pair)


def decode_all_groups(query: bytes) -> ListPage:
    """`prefix`, `cursor` and `page_size` of a list of the groups of all topics. Raises 400."""
    return page_of(Query(query), ALL_GROUP_CURSORS)


def decode_group_list(query: bytes) -> ListPage:
    """`prefix`, `cursor` and `page_size` of a list of groups. Raises 400."""
    return page_of(Query(query), GROUP_CURSORS)
