"""Decoding and checking the calls that look at jobs, retry and cancel them (`docs/spec/consumers.md` section 5).
Without I/O."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeVar, cast

import msgspec
from msgspec import UNSET, UnsetType

from topics.config import Settings
from topics.errors import ApiError, invalid
from topics.http.requests.filter_fields import check_filter, check_query_filter
from topics.http.requests.json_checks import check_depth, check_utf8, decode_json, not_u64
from topics.http.requests.query_strings import Query
from topics.http.requests.topic_requests import ListCursors, page_of
from topics.job_model import JobPageRequest, JobSelection, JobStateName
from topics.model import MAX_U64

STATES: Final = ("ready", "in_flight", "delayed", "dead")


def _check_position(text: str, field: str) -> str:
    if not (text.isascii() and text.isdecimal() and int(text) <= MAX_U64):
        raise invalid(field, "is not a cursor of this list")
    return text


JOB_CURSORS: Final = ListCursors(b"j:", _check_position)
LETTER_CURSORS: Final = ListCursors(b"l:", _check_position)
"""The cursors of jobs and of dead letters: the seq that was looked at last."""


class RetryJobsBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of a retry, before checks. A misspelt `state` must not change all jobs."""

    seqs: list[int] | UnsetType = UNSET
    filter: msgspec.Raw | UnsetType = UNSET
    state: Literal["delayed", "dead"] | None = None


class CancelJobsBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of a cancellation, before checks; likewise."""

    seqs: list[int] | UnsetType = UNSET
    filter: msgspec.Raw | UnsetType = UNSET
    state: Literal["ready", "in_flight", "delayed"] | None = None


_retry_body: Final = msgspec.json.Decoder(RetryJobsBody)
_cancel_body: Final = msgspec.json.Decoder(CancelJobsBody)

B = TypeVar("B", RetryJobsBody, CancelJobsBody)


class JobListQuery(NamedTuple):
    """A page of jobs that is asked for, and whether it is of dead ones."""

    request: JobPageRequest
    dead: bool


def decode_job_list(query: bytes) -> JobListQuery:
    """`state`, `filter`, `cursor`, `page_size` and `touch` of a list of jobs. Raises 400."""
    values = Query(query)
    state = values.text("state", "") if values.all("state") else None
    if state is not None and state not in STATES:
        raise invalid("state", f"must be one of {', '.join(STATES)}")
    dead = state == "dead"
    page = page_of(values, LETTER_CURSORS if dead else JOB_CURSORS)
    wanted = None if dead else cast("JobStateName | None", state)
    after = int(page.after or 0)
    touch = values.boolean("touch", True)
    return JobListQuery(JobPageRequest(wanted, check_query_filter(values), after, page.page_size, touch), dead)


def decode_retry(raw: bytes, settings: Settings) -> tuple[JobSelection, Literal["delayed", "dead"] | None]:
    """The body of a retry: which jobs, and in which state if that is given. Raises 400."""
    body = _decode(_retry_body, raw)
    return _selection(body, settings, "delayed"), body.state


def decode_cancel(raw: bytes, settings: Settings) -> JobSelection:
    """The body of a cancellation. Raises 400."""
    body = _decode(_cancel_body, raw)
    return _selection(body, settings, body.state)


def _decode(decoder: msgspec.json.Decoder[B], raw: bytes) -> B:
    if not raw:
        raise _nothing_selected()
    check_utf8(raw)
    body = decode_json(decoder, raw)
    check_depth(raw, "body")
    return body


def _selection(body: RetryJobsBody | CancelJobsBody, settings: Settings, state: JobStateName | None) -> JobSelection:
    wanted = check_filter(body.filter)
    if body.seqs is UNSET:
        if wanted is None:
            raise _nothing_selected()
        return JobSelection(None, wanted, state)
    if wanted is not None:
        raise invalid("filter", "cannot be given with seqs")
    if not body.seqs:
        raise invalid("seqs", "must not be empty")
    seqs = sorted(set(body.seqs))
    if len(seqs) > settings.max_claim:
        message = f"seqs: {len(seqs)} seqs, at most {settings.max_claim} are allowed"
        raise ApiError("batch_too_large", message, detail={"field": "seqs", "max": settings.max_claim})
    if seqs[0] < 0 or seqs[-1] > MAX_U64:
        raise not_u64(f"seqs[{next(i for i, seq in enumerate(body.seqs) if not 0 <= seq <= MAX_U64)}]")
    return JobSelection(seqs, None, state)


def _nothing_selected() -> ApiError:
    return invalid("filter", "filter or seqs is required")
