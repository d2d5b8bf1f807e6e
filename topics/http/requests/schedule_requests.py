"""Decoding and checking the calls about schedules (`docs/spec/consumers.md` section 5). Without I/O."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from topics.config import Settings
from topics.errors import ApiError, invalid
from topics.http.requests.append_requests import decode_append
from topics.http.requests.json_checks import MAX_DEPTH, check_utf8, decode_json, depth_of, too_deep
from topics.http.requests.query_strings import Query
from topics.http.requests.topic_requests import ListCursors, ListPage, page_of
from topics.log.names import check_topic_name
from topics.model import RecordIn, SchedulePatch

SCHEDULE_CURSORS: Final = ListCursors(b"j:", check_topic_name)

MIN_EVERY_MS: Final = 100
MAX_EVERY_MS: Final = 10 * 366 * 86_400_000
"""Ten years."""

_AROUND_DATA: Final = 2
"""Levels of a body around `data`."""


class PutScheduleBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of the PUT of a schedule, before checks: exactly one of `cron` and `every_ms`."""

    topic: str
    record: RecordIn
    cron: str | None = None
    every_ms: int | None = None
    time_zone: str = "UTC"
    catch_up: Literal["none", "one", "all"] = "none"
    paused: bool | UnsetType = UNSET


class _ScheduleBody(PutScheduleBody, kw_only=True, forbid_unknown_fields=True):
    record: msgspec.Raw  # type: ignore[assignment]


_put: Final = msgspec.json.Decoder(_ScheduleBody)


def decode_put_schedule(raw: bytes, settings: Settings) -> SchedulePatch:
    """The body of the PUT of a schedule. Times are checked where the clock is known. Raises 400."""
    if not raw:
        raise invalid("topic", "is required")
    check_utf8(raw)
    body = decode_json(_put, raw)
    if depth_of(raw) > MAX_DEPTH + _AROUND_DATA:
        raise too_deep("body")
    check_topic_name(body.topic, "topic")
    if (body.cron is None) == (body.every_ms is None):
        raise invalid("cron" if body.cron is not None else "every_ms", "exactly one of cron and every_ms must be given")
    if body.every_ms is not None and not MIN_EVERY_MS <= body.every_ms <= MAX_EVERY_MS:
        raise invalid("every_ms", f"must be from {MIN_EVERY_MS} to {MAX_EVERY_MS}", min=MIN_EVERY_MS, max=MAX_EVERY_MS)
    if body.every_ms is not None and body.time_zone != "UTC":
        raise invalid("time_zone", "is for cron; every_ms counts from the creation")
    return SchedulePatch(
        topic=body.topic,
        record=_record_text(bytes(body.record), settings),
        cron=body.cron,
        every_ms=body.every_ms,
        time_zone=body.time_zone,
        catch_up=body.catch_up,
        paused=None if body.paused is UNSET else body.paused,
    )


def _record_text(raw: bytes, settings: Settings) -> str:
    """Check a record as an append does. Return its JSON without fields that are not given."""
    try:
        request = decode_append(b'{"records":[%b]}' % raw, settings, strict=True)
    except ApiError as error:
        raise _of_record(error) from None
    record = request.records[0]
    given: dict[str, Any] = {"data": msgspec.Raw(request.datas[0])}
    for name in record.__struct_fields__:
        value = getattr(record, name)
        if name != "data" and value is not None and value is not UNSET and value != {}:
            given[name] = value
    return msgspec.json.encode(given).decode()


def _of_record(error: ApiError) -> ApiError:
    """Return an error about `records[0].tag` of an append as one about `record.tag`."""
    detail = dict(error.detail)
    field = detail.get("field")
    if isinstance(field, str):
        detail["field"] = field.replace("records[0]", "record", 1)
    return ApiError(error.code, error.message.replace("records[0]", "record", 1), detail=detail)


def decode_schedule_list(query: bytes) -> ListPage:
    """`prefix`, `cursor` and `page_size` of a list of schedules. Raises 400."""
    return page_of(Query(query), SCHEDULE_CURSORS)
