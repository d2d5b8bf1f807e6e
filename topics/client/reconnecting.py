"""How a stream that is to go on whatever happens deals with failures: which it survives, and how long it waits.

Pure: time is given, random numbers are given. What is asked for again after a break is the business of
`topics.client.following` and `topics.client.working`; the waiting is done by `topics.client.tailing`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from random import Random
from typing import Final, TypeVar

import msgspec

from topics.client.errors import ApiError, ConnectionFailed, NotFound, ProtocolError, TopicsError, Unavailable
from topics.client.retry import Retry
from topics.client.sse import Event

T = TypeVar("T")

DEFAULT_HEARTBEAT_MS: Final = 15_000
HEARTBEAT_MS: Final = (1_000, 60_000)
"""What the daemon clamps the setting to (`docs/spec/api.md` section 8)."""

HEARTBEATS_MISSED: Final = 3
"""A stream that has not brought a byte for as many heartbeats is broken."""

LASTS_S: Final = 1.0
"""A connection that has brought nothing but its head for so long works all the same: the waits begin anew after it."""

ADVICE: Final = frozenset({429, 504})
"""The codes of `error` events that end nothing: paced under pressure, and records that cannot be read now."""

OnBreak = Callable[[TopicsError, float], None]
OnResume = Callable[[], None]


class Reconnects:
    """Failures in a row, and what follows from them.

    There is no bound to their number unless `give_up_after` (seconds since the last sign of the daemon) is given; the
    waits between them grow up to those of `retry`. `on_break(error, wait_s)` is called for each failure that is
    survived, `on_resume()` when a stream is open again after that.
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
        """A stream is open."""
        self._open_since = now
        if self._told:
            self._told = False
            if self._on_resume is not None:
                self._on_resume()

    def heard(self, now: float, *, events: bool) -> None:
        """Bytes have come, and perhaps events in them."""
        if self._failures and (events or now - self._open_since >= LASTS_S):
            self._failures = 0
            self._away_since = None

    def after(self, error: TopicsError, now: float, *, passing: Collection[int] = ()) -> float:
        """Seconds to wait before the next try. Raises the error where another try is no use: an answer that is not the
        contract's, a refusal (408, 429 and the statuses in `passing` aside), or when it is time to give up."""
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
    """What an `error` event ends its stream with; None for one that ends nothing. Raises ProtocolError."""
    said = decoded(_final, event)
    if said.code in ADVICE:
        return None
    kind = {404: NotFound, 503: Unavailable}.get(said.code, ApiError)
    wait = None if said.retry_after_ms is None else said.retry_after_ms / 1000
    return kind(said.code, "stream_ended", said.error, {}, wait)


def ended() -> TopicsError:
    """What it is when a stream ends without a word."""
    return ConnectionFailed("the stream has ended", outcome_unknown=False)


def decoded(decoder: msgspec.json.Decoder[T], event: Event) -> T:
    """The data of an event. Raises ProtocolError for what is none."""
    try:
        return decoder.decode(event.data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ProtocolError(f"an event {event.name!r} that is not one of topics: {error}") from None


def silence_s(heartbeat_ms: int | None) -> float:
    """Seconds without a byte after which a stream with this heartbeat is broken."""
    least, most = HEARTBEAT_MS
    wanted = DEFAULT_HEARTBEAT_MS if heartbeat_ms is None else heartbeat_ms
    return HEARTBEATS_MISSED * max(least, min(wanted, most)) / 1000
