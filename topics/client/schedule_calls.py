"""The calls on schedules as values (`docs/spec/consumers.md` section 5). As `topics.client.calls` is, without I/O; the
functions are methods of both clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal
from urllib.parse import quote

from msgspec import Raw

from topics.client import results
from topics.client.calls import ClientCall, encode, encode_record, target


def _path(schedule: str, *more: str) -> str:
    """The path of a schedule. A name with slashes stays one segment of the path."""
    return "/".join(("/v0/schedules", quote(schedule, safe=":"), *more))


def create_schedule(
    schedule: str,
    topic: str,
    data: object,
    *,
    cron: str | None = None,
    every_ms: int | None = None,
    time_zone: str = "UTC",
    catch_up: Literal["none", "one", "all"] = "none",
    paused: bool | None = None,
    tag: str | None = None,
    node: str | None = None,
    meta: Mapping[str, str] | None = None,
) -> ClientCall[results.ScheduleState]:
    """Let the daemon append a record to a topic at the times of `cron` (five fields, in `time_zone`), or every
    `every_ms`; exactly one of the two is given. A schedule that exists becomes this one; `paused=None` leaves it paused
    if it is. The topic is made at the first firing. `data` may be a `NewRecord`, with what is said about its job."""
    body: dict[str, object] = {
        "topic": topic,
        "record": Raw(encode_record(data, tag, node, meta)),
        "cron": cron,
        "every_ms": every_ms,
        "time_zone": time_zone,
        "catch_up": catch_up,
        "paused": paused,
    }
    given = {name: value for name, value in body.items() if value is not None}
    return ClientCall(
        method="PUT", target=_path(schedule), answer=results.ScheduleState, body=encode(given), repeatable=True
    )


def schedule(schedule: str) -> ClientCall[results.ScheduleState]:
    """A schedule: what it appends, and when it has fired and will fire."""
    return ClientCall(method="GET", target=_path(schedule), answer=results.ScheduleState, repeatable=True)


def schedule_page(
    *, prefix: str = "", page_size: int = 100, cursor: str | None = None
) -> ClientCall[results.SchedulePage]:
    """One page of the schedules whose names begin with `prefix`, in the order of names. `cursor` is `next_cursor` of
    the page before; None: the first page."""
    where = target("/v0/schedules", prefix=prefix or None, page_size=page_size, cursor=cursor)
    return ClientCall(method="GET", target=where, answer=results.SchedulePage, repeatable=True)


def delete_schedule(schedule: str) -> ClientCall[results.ScheduleDeletion]:
    """Delete a schedule. Its topic stays."""
    return ClientCall(method="DELETE", target=_path(schedule), answer=results.ScheduleDeletion, repeatable=False)


def run_schedule(schedule: str) -> ClientCall[results.ScheduleRun]:
    """Append the record of a schedule now, paused or not. Its times stay as they are. Not repeated when its outcome is
    unknown."""
    return ClientCall(method="POST", target=_path(schedule, "run"), answer=results.ScheduleRun, repeatable=False)


def pause_schedule(schedule: str) -> ClientCall[results.ScheduleState]:
    """Let a schedule fire nothing."""
    return ClientCall(method="POST", target=_path(schedule, "pause"), answer=results.ScheduleState, repeatable=True)


def resume_schedule(schedule: str) -> ClientCall[results.ScheduleState]:
    """Let a schedule fire again, from now on."""
    return ClientCall(method="POST", target=_path(schedule, "resume"), answer=results.ScheduleState, repeatable=True)
