"""When a call is sent again, and after how long (`docs/design/clients.md`).

Pure: no clock, no sleeping; the random numbers are given. Two questions decide. May the call have been carried out?
After a refusal (429, 503 of the daemon) it was not; after a broken connection or another failure of a server nobody
knows, and then only a call that does no harm twice is repeated. Is there hope? Not where a limit is reached that
waiting does not lift, and not after `give_up_after`.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

from topics.client.errors import ConnectionFailed, ServerError, Throttled, TopicsError, Unavailable

LASTING_LIMITS: Final = frozenset(
    {"max_topics", "max_routers", "max_total_bytes", "max_idempotency_keys", "max_stages", "max_watch_sessions"}
)
"""`detail.limit` of a 429 that somebody has to do something about."""


@dataclass(frozen=True, slots=True)
class Retry:
    """How a client repeats what may be repeated. Durations in seconds."""

    give_up_after: float = 30.0
    """Counted from the beginning of the call. Below the idempotency window of a topic (120 s by default), because an
    append that is repeated after it is a second one."""
    first_wait: float = 0.05
    longest_wait: float = 5.0

    def wait(self, attempt: int, error: TopicsError, rng: Random) -> float:
        """How long to wait after failure number `attempt` (from 1): at random up to a bound that doubles each time,
        and at least as long as the daemon has asked for."""
        bound = min(self.longest_wait, self.first_wait * 2 ** min(attempt - 1, 20))
        return max(error.retry_after or 0.0, rng.uniform(bound / 2, bound))


def may_repeat(error: TopicsError, *, repeatable: bool) -> bool:
    """Whether a call that failed so may be sent again, and has a chance."""
    if isinstance(error, Throttled):
        return error.detail.get("limit") not in LASTING_LIMITS
    if isinstance(error, Unavailable):
        # One that is not the daemon's own comes from something in front of it, which may have passed the call on.
        # One that turned read-only may have had the append in hand.
        return repeatable or error.code in {"not_ready", "shutting_down"}
    if isinstance(error, ServerError):
        return repeatable
    if isinstance(error, ConnectionFailed):
        return repeatable or not error.outcome_unknown
    return False


class Attempts:
    """The attempts at one call: counts its failures, and decides whether and when the next attempt is made.

    With `retry=None` no failure is repeated. `repeatable` says whether the call does no harm when the daemon carries it
    out twice. `now` is the time at which the call begins, in seconds of a clock that does not jump.
    """

    __slots__ = ("_began", "_count", "_position", "_repeatable", "_retry", "_rng")

    def __init__(self, retry: Retry | None, *, repeatable: bool, now: float, rng: Random) -> None:
        self._retry = retry
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
            self._position, self._began, self._count = position, now, 0
        self._count += 1
        if self._retry is None or not may_repeat(error, repeatable=self._repeatable):
            raise error
        wait = self._retry.wait(self._count, error, self._rng)
        if now + wait - self._began > self._retry.give_up_after:
            raise error
        return wait
