"""The fields of records that are about jobs: `delay_ms`, `not_before`, `priority`, `unique` (`docs/spec/consumers.md`
section 5). Without I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from topics.errors import invalid
from topics.model import JobFields, RecordIn, UniqueIn, UniqueJob
from topics.queue.job_pages import DEFAULT_PRIORITY, MOST_PRIORITY
from topics.queue.unique_keys import digest_of

MAX_DELAY_MS: Final = 3653 * 86_400_000
"""The longest delay: ten years."""

MAX_NOT_BEFORE: Final = 253_402_300_799_999
"""The latest time of a job: the end of the year 9999. The engine checks that it is within ten years."""

MAX_UNIQUE_KEY_BYTES: Final = 256

MAX_WINDOW_MS: Final = 7 * 86_400_000
"""The longest window of a unique key: seven days."""

_NAMES: Final = (b'"delay_ms"', b'"not_before"', b'"priority"', b'"unique"')


def may_have_jobs(raw: bytes) -> bool:
    """Return True if a body may have fields of jobs: a search is faster than looking at each record."""
    return b"\\" in raw or any(name in raw for name in _NAMES)


def jobs_of(records: Sequence[RecordIn], first: int = 0) -> JobFields | None:
    """Return what records say about their jobs, checked; None if they say nothing. The first is record `first`. Raises
    400."""
    found = ""
    for i, record in enumerate(records, first):
        if record.delay_ms is None and record.not_before is None and record.priority is None and record.unique is None:
            continue
        place = f"records[{i}]"
        name = _check(place, record)
        found = found or f"{place}.{name}"
    if not found:
        return None
    unique = [_unique_of(record.unique, i) for i, record in enumerate(records, first)]
    return JobFields(
        found,
        [record.delay_ms or 0 for record in records],
        [record.not_before or 0 for record in records],
        bytes(DEFAULT_PRIORITY if record.priority is None else record.priority for record in records),
        unique if any(unique) else None,
    )


def refuse_unique(jobs: JobFields | None, where: str) -> None:
    """Refuse unique keys. `where` names the place that takes none, such as "a stage". Raises 400."""
    if jobs is not None and jobs.unique is not None:
        i = next(i for i, job in enumerate(jobs.unique) if job is not None)
        raise invalid(f"records[{i}].unique", f"is not for {where}")


def _check(place: str, record: RecordIn) -> str:
    """Check the fields of one record. Return the name of the first that it has."""
    delay_ms, not_before, priority = record.delay_ms, record.not_before, record.priority
    if delay_ms is not None and not_before is not None:
        raise invalid(f"{place}.not_before", "must not be given together with delay_ms")
    if delay_ms is not None and not 0 <= delay_ms <= MAX_DELAY_MS:
        raise invalid(f"{place}.delay_ms", f"must be between 0 and {MAX_DELAY_MS} (10 years)", max=MAX_DELAY_MS)
    if not_before is not None and not 0 <= not_before <= MAX_NOT_BEFORE:
        raise invalid(f"{place}.not_before", "must be a time in ms since the Unix epoch, at most 10 years from now")
    if priority is not None and not 0 <= priority <= MOST_PRIORITY:
        raise invalid(f"{place}.priority", f"must be between 0 and {MOST_PRIORITY}", max=MOST_PRIORITY)
    if delay_ms is not None or not_before is not None:
        return "delay_ms" if delay_ms is not None else "not_before"
    return "priority" if priority is not None else "unique"


def _unique_of(unique: UniqueIn | None, i: int) -> UniqueJob | None:
    """Return the unique key of record `i`, checked."""
    if unique is None:
        return None
    place, window_ms = f"records[{i}].unique", unique.window_ms
    size = len(unique.key.encode())
    if not 1 <= size <= MAX_UNIQUE_KEY_BYTES:
        raise invalid(f"{place}.key", f"must have 1 to {MAX_UNIQUE_KEY_BYTES} bytes", max=MAX_UNIQUE_KEY_BYTES)
    if unique.scope != "window" and window_ms is not None:
        raise invalid(f"{place}.window_ms", 'is only for the scope "window"')
    if unique.scope == "window" and window_ms is None:
        raise invalid(f"{place}.window_ms", 'is required for the scope "window"')
    if window_ms is not None and not 1 <= window_ms <= MAX_WINDOW_MS:
        raise invalid(f"{place}.window_ms", f"must be between 1 and {MAX_WINDOW_MS} (7 days)", max=MAX_WINDOW_MS)
    return UniqueJob(digest_of(unique.key), unique.scope, window_ms or 0)
