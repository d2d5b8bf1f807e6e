"""Which failures a tail, watch or stream of jobs survives, and how long it waits before it connects again.

Pure: the time and the random numbers are given. The next call after a break is decided by
`topics.client.streams.follower` and `topics.client.streams.job_stream`; `topics.client.streams.tails` and
`topics.client.streams.async_tails` wait.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from random import Random
from typing import Final, TypeVar

import msgspec

from topics.client.errors import ApiError, ConnectionFailed, NotFound, ProtocolError, TopicsError, Unavailable
from topics.client.retry import Retry
from topics.client.streams.sse import Event

T = TypeVar("T")

DEFAULT_HEARTBEAT_MS: Final = 15_000
HEARTBEAT_MS: Final = (1_000, 60_000)
"""The range to which the daemon clamps the setting (`docs/spec/api.md` section 8)."""

HEARTBEATS_MISSED: Final = 3
"""A stream that brings no byte for so many heartbeats counts as broken."""

LASTS_S: Final = 1.0
"""A connection that stays open for so long counts as working even if no event has come: the next failure is the first
of a new row (seconds)."""

ADVICE: Final = frozenset({429, 504})
"""The codes of `error` events that do not end the stream: it is slowed down under pressure, or records cannot be read
for the moment."""

OnBreak = Callable[[TopicsError, float], None]
OnResume = Callable[[], None]


class Reconnection:
    """Counts the failures in a row of one stream, and decides whether it is opened again.

    Their number is not bounded. With `give_up_after` their time is: from the first of them, in seconds. The waits
    between them grow as `retry` says, whose own `give_up_after` does not count. `on_break(error, wait_s)` is called for
    each failure after which the stream is opened again, `on_resume()` when it is open again.
    """

    def __init__(
        self,
        *,
        give_up_after: float | None = None,
        on_break: OnBreak | None = None,
        on_resume: OnResume | None = None,
        retry: Retry = Retry(),  # noqa: B008 - immutable
        rng: Random | None = None,
    ) -> None:
        self._give_up_after = give_up_after
        self._on_break = on_break
        self._on_resume = on_resume
        self._retry = retry
        self._rng = rng or Random()
        self._failures = 0
        self._away_since: float | None = None
        self._open_since = 0.0
        self._told = False

    def opened(self, now: float) -> None:
        """Note that a stream is open."""
        self._open_since = now
        if self._told:
            self._told = False
            if self._on_resume is not None:
                self._on_resume()

    def heard(self, now: float, *, events: bool) -> None:
        """Note that bytes have come; `events`: at least one complete event among them."""
        if self._failures and (events or now - self._open_since >= LASTS_S):
            self._failures = 0
            self._away_since = None

    def after(self, error: TopicsError, now: float, *, passing: Collection[int] = ()) -> float:
        """Return how long to wait before the next attempt, in seconds.

        Raises the error where another attempt cannot help: a ProtocolError; an ApiError below 500, except for 408, 429
        and the statuses in `passing`; and any error when `give_up_after` is over.
        """
        if isinstance(error, ProtocolError):
            raise error
        if isinstance(error, ApiError) and error.status < 500 and error.status not in {408, 429, *passing}:
            raise error
        if self._away_since is None:
            self._away_since = now
        self._failures += 1
        wait = self._retry.wait(self._failures, error, self._rng)
        if self._give_up_after is not None and now + wait - self._away_since > self._give_up_after:
            raise error
        self._told = True
        if self._on_break is not None:
            self._on_break(error, wait)
        return wait


class _Final(msgspec.Struct):
    code: int
    error: str
    retry_after_ms: float | None = None


_final: Final = msgspec.json.Decoder(_Final)


def error_event(event: Event) -> TopicsError | None:
    """The error that an `error` event stands for; None if it does not end the stream. Raises ProtocolError for an event
    that no daemon sends."""
    said = decoded(_final, event)
    if said.code in ADVICE:
        return None
    kind = {404: NotFound, 503: Unavailable}.get(said.code, ApiError)
    wait = None if said.retry_after_ms is None else said.retry_after_ms / 1000
    return kind(said.code, "stream_ended", said.error, {}, wait)


def ended() -> TopicsError:
    """The error for a stream that ends without an `error` event."""
    return ConnectionFailed("the stream has ended", outcome_unknown=False)


def decoded(decoder: msgspec.json.Decoder[T], event: Event) -> T:
    """The data of an event. Raises ProtocolError for data that no daemon sends."""
    try:
        return decoder.decode(event.data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ProtocolError(f"an event {event.name!r} that is not one of topics: {error}") from None


def silence_s(heartbeat_ms: int | None) -> float:
    """How long a stream with this heartbeat (None: the default) may bring no byte before it counts as broken, in
    seconds."""
    least, most = HEARTBEAT_MS
    wanted = DEFAULT_HEARTBEAT_MS if heartbeat_ms is None else heartbeat_ms
    return HEARTBEATS_MISSED * max(least, min(wanted, most)) / 1000
