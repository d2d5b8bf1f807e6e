"""Which failed calls are repeated, and after how long (`docs/design/clients.md`).

Pure: no clock, no sleeping; the random numbers are given. Two questions decide. May the daemon have carried out the
call? After a refusal (429, and 503 while it starts or stops) it has not, and the call is repeated. After a broken
connection or another failure of a server it is not known, and only a call that does no harm twice is repeated. Can a
repeat succeed? Not where a limit is reached that waiting does not lift, and the client stops after `give_up_after`.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

from topics.client.errors import ConnectionFailed, ServerError, Throttled, TopicsError, Unavailable

LASTING_LIMITS: Final = frozenset(
    {
        "max_topics",
        "max_routers",
        "max_consumers",
        "max_groups",
        "max_consumer_filters",
        "max_schedules",
        "max_schedule_records",
        "max_total_bytes",
        "max_idempotency_keys",
        "max_unique_keys",
        "max_stages",
        "max_watch_sessions",
    }
)
"""Values of `detail.limit` of a 429 that do not pass with time: somebody has to delete something or raise the limit."""


@dataclass(frozen=True, slots=True)
class Retry:
    """How long a client repeats a failed call, and how long it waits between attempts. Durations in seconds."""

    give_up_after: float = 30.0
    """From the beginning of the call to the last attempt. Keep it below the idempotency window of the topics (120 s by
    default): an append that is repeated after the window appends its records a second time."""
    first_wait: float = 0.05
    """The longest wait after the first failure; it doubles with each further failure."""
    longest_wait: float = 5.0
    """The bound of all waits, except for those that the daemon asks for."""

    def wait(self, attempt: int, error: TopicsError, rng: Random) -> float:
        """How long to wait after failure number `attempt` (from 1), in seconds. The wait is at random between a bound
        and half of it, where the bound doubles each time, and at least as long as the daemon has asked for. 0 if
        another daemon is to be asked (`topics.client.daemon_choice`)."""
        if error.elsewhere:
            return 0.0
        bound = min(self.longest_wait, self.first_wait * 2 ** min(attempt - 1, 20))
        return max(error.retry_after or 0.0, rng.uniform(bound / 2, bound))


def may_repeat(error: TopicsError, *, repeatable: bool) -> bool:
    """Return True if a call that failed with `error` may be repeated, and a repeat can succeed. `repeatable` says
    whether the call does no harm when the daemon carries it out twice."""
    if isinstance(error, Throttled):
        return error.detail.get("limit") not in LASTING_LIMITS
    if isinstance(error, Unavailable):
        # With another code it comes from a proxy, which may have passed the call on; or the daemon turned read-only or
        # lost its data to another owner, perhaps while it was carrying out the call.
        is_refused = error.code == "not_owner" and error.detail.get("refused") is True
        return repeatable or is_refused or error.code in {"not_ready", "shutting_down"}
    if isinstance(error, ServerError):
        return repeatable
    if isinstance(error, ConnectionFailed):
        return repeatable or not error.outcome_unknown
    return False


class Attempts:
    """The attempts at one call: counts its failures, and decides whether and when the next attempt is made.

    With `retry=None` no failure is repeated, but each of the client's `daemons` is tried. `repeatable` says whether the
    call does no harm when the daemon carries it out twice. `now` is the time at which the call begins, in seconds of a
    clock that does not jump.
    """

    __slots__ = ("_began", "_count", "_daemons", "_moves", "_position", "_repeatable", "_retry", "_rng")

    def __init__(self, retry: Retry | None, *, repeatable: bool, now: float, rng: Random, daemons: int = 1) -> None:
        self._retry = retry
        self._daemons = daemons
        self._moves = 0
        """How often another daemon was asked since the last wait."""
        self._repeatable = repeatable
        self._began = now
        self._rng = rng
        self._count = 0
        self._position: int | None = None
        """Of a stream: where it stood at the last failure."""

    def after(self, error: TopicsError, now: float, *, position: int | None = None) -> float:
        """Return how long to wait before the next attempt, in seconds. Raises the error if there is to be none.

        `position` is for a stream that is opened again after a failure: the last seq that it has brought. If it has
        moved since the last failure, failures are counted anew, and `give_up_after` begins now.
        """
        if position is not None and position != self._position:
            self._position, self._began, self._count, self._moves = position, now, 0, 0
        if not may_repeat(error, repeatable=self._repeatable):
            raise error
        if error.elsewhere and self._moves < self._daemons - 1:
            self._moves += 1
            return 0.0
        if self._retry is None:
            raise error
        self._count, self._moves = self._count + 1, 0
        wait = self._retry.wait(self._count, error, self._rng)
        if now + wait - self._began > self._retry.give_up_after:
            raise error
        return wait
