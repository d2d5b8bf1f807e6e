"""Decoding and checking the body of a redrive (`docs/spec/consumers.md` section 5). Without I/O."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from topics.engine.redrives.redrives import RedriveWish
from topics.errors import invalid
from topics.http.requests.filter_fields import check_filter
from topics.http.requests.json_checks import check_depth, check_utf8, decode_json
from topics.log.names import check_topic_name
from topics.log.topic_config import MAX_RATE_JOBS
from topics.model import MAX_U64, ClaimRate
from topics.runtime.instant import MAX_AHEAD_MS


class RedriveBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of a redrive, before checks."""

    to: str | None = None
    filter: msgspec.Raw | UnsetType = UNSET
    max: int | None = None
    rate: ClaimRate | None = None


_body: Final = msgspec.json.Decoder(RedriveBody)


def decode_redrive(raw: bytes) -> RedriveWish:
    """Return the request of a redrive. Raises 400."""
    if not raw:
        return RedriveWish()
    check_utf8(raw)
    body = decode_json(_body, raw)
    check_depth(raw, "body")
    if body.to is not None:
        check_topic_name(body.to, "to")
    if body.max is not None and not 1 <= body.max <= MAX_U64:
        raise invalid("max", "must be an integer from 1 to 2^64 - 1")
    rate = body.rate
    if rate is not None:
        for name, value, most in (("jobs", rate.jobs, MAX_RATE_JOBS), ("per_ms", rate.per_ms, MAX_AHEAD_MS)):
            if not 1 <= value <= most:
                raise invalid(f"rate.{name}", f"must be between 1 and {most}", min=1, max=most)
    limits = None if rate is None else (rate.jobs, rate.per_ms)
    return RedriveWish(body.to, check_filter(body.filter), body.max, limits)
