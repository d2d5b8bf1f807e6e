"""Who asks, what they may do, and how much of it (`docs/spec/api.md` section 12, `docs/design/guardrails.md`).

The gate asks here before it reads a body, and hands on `call.key`; names that stand in bodies are checked by those who
decode them. Where there are no keys everybody is `OPEN`, and nothing is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple, Protocol
from urllib.parse import unquote_to_bytes

from topics.auth.keys import OPEN, Key, Keyring, Scope
from topics.config import Settings
from topics.errors import ApiError, throttled, unauthorized
from topics.http.budgets.token_bucket import Bucket
from topics.http.grants import Grant
from topics.http.routes import Route
from topics.runtime.clock import Clock
from topics.runtime.withdrawal import CURRENT


class Shown(Protocol):
    """A stream or socket that is open."""

    key: Key

    def withdraw(self) -> None:
        """Its key is not good for it any more: it ends."""

    @property
    def shows(self) -> tuple[Scope, Iterable[str]]:
        """What its key has to be good for: scopes, and the topics that it is about."""


class Ended(NamedTuple):
    """How much a reload of the keys has ended."""

    streams: int
    calls: int


class Access:
    """See the module."""

    def __init__(self, settings: Settings, clock: Clock, keyring: Keyring) -> None:
        self._settings = settings
        self._clock = clock
        self._keyring = keyring
        self._in_flight: Counter[bytes] = Counter()
        self._buckets: dict[bytes, Bucket] = {}
        self._shown: dict[Shown, None] = {}
        self._granted: dict[Grant, None] = {}

    # -- who ---------------------------------------------------------------------------------------------------------

    def identify(self, route: Route, headers: Mapping[bytes, bytes], query: bytes) -> Key:
        """The key of a request to `route`. Raises `401 unauthorized`."""
        if not self._keyring or (route.needs is None and not self._settings.probe_auth):
            return OPEN
        token = _bearer(headers)
        if token is None and route.token_in_query:
            token = _query_token(query)
        key = self._keyring.find(token) if token is not None else None
        if key is None:
            raise _unauthorized(known=token is not None)
        return key

    @property
    def has_keys(self) -> bool:
        """Whether there is access control."""
        return bool(self._keyring)

    def share(self) -> float:
        """How much of what all share one key may take, 0..1: the whole as long as there is no other."""
        share = self._settings.key_share
        return share if share and len(self._keyring) > 1 else 1.0

    def name_of(self, key: Key) -> str:
        """How logs call whoever asks: `unknown` where there are keys and it is not known which one."""
        return "unknown" if self._keyring and key is OPEN else key.name

    def current(self, key: Key) -> Key:
        """What a key that was valid may do by now. Raises `401 unauthorized`."""
        current = self._keyring.current(key)
        if current is None:
            raise _unauthorized(known=True)
        return current

    def replace(self, keyring: Keyring) -> Ended:
        """From now on these keys are valid. Streams, sockets and calls that theirs could not begin any more end."""
        self._keyring = keyring
        for digest in [digest for digest in self._buckets if keyring.current(Key(digest, Scope(0), ())) is None]:
            del self._buckets[digest]
        withdrawn = [shown for shown in self._shown if self._refusal(shown.key, *shown.shows) is not None]
        for shown in withdrawn:
            shown.withdraw()
        calls = 0
        for grant in self._granted:
            if (reason := self._refusal(grant.key, *grant.shows)) is not None:
                grant.withdraw(reason)
                calls += 1
        return Ended(len(withdrawn), calls)

    def _refusal(self, key: Key, scopes: Scope, names: Iterable[str]) -> ApiError | None:
        """Why a key that was valid is not good for this any more: 401 or 403; None if it still is."""
        try:
            current = self.current(key)
            current.check_scope(scopes)
            for name in names:
                current.check_name(name)
        except ApiError as error:
            return error
        return None

    @property
    def calls(self) -> int:
        """Calls with a key that are running."""
        return len(self._granted)

    @contextmanager
    def granting(self, grant: Grant) -> Iterator[None]:
        """While a call runs, its waits end when its key is withdrawn (`topics.runtime.withdrawal`)."""
        if not grant.key.digest:
            yield
            return
        self._granted[grant] = None
        token = CURRENT.set(grant.withdrawal)
        try:
            yield
        finally:
            CURRENT.reset(token)
            del self._granted[grant]

    @contextmanager
    def showing(self, shown: Shown) -> Iterator[None]:
        """While a stream or socket is open, it ends when its key is withdrawn."""
        self._shown[shown] = None
        if self._refusal(shown.key, *shown.shows) is not None:  # withdrawn while it was being opened
            shown.withdraw()
        try:
            yield
        finally:
            del self._shown[shown]

    # -- how much ----------------------------------------------------------------------------------------------------

    def enter(self, key: Key) -> None:
        """One more request of this key; `leave` follows. Raises `429 throttled`."""
        if not key.digest:
            return
        self.check_rate(key)
        maximum = self._settings.max_inflight_per_key
        if maximum and self._in_flight[key.digest] >= maximum:
            raise throttled("max_inflight_per_key", maximum)
        self._in_flight[key.digest] += 1

    def leave(self, key: Key) -> None:
        """The request is over."""
        if not key.digest:
            return
        self._in_flight[key.digest] -= 1
        if not self._in_flight[key.digest]:
            del self._in_flight[key.digest]

    def check_rate(self, key: Key) -> None:
        """One more request, or command of a socket. Raises `429 throttled`."""
        rate = self._settings.rate_per_key
        if not key.digest or not any(rate):
            return
        now_ns = self._clock.perf_ns()
        bucket = self._buckets.get(key.digest)
        if bucket is None:
            bucket = self._buckets[key.digest] = Bucket(rate, now_ns)
        if wait_ms := bucket.admit(now_ns):
            raise throttled("rate_per_key", rate.requests or rate.bytes, retry_after_ms=wait_ms)

    def charge(self, key: Key, size: int) -> None:
        """The key has moved so many bytes."""
        bucket = self._buckets.get(key.digest)
        if bucket is not None:
            bucket.charge(size)


def _unauthorized(*, known: bool) -> ApiError:
    message = "this key is not valid" if known else "an API key is needed: Authorization: Bearer KEY"
    return unauthorized(message, token_shown=known)


def _bearer(headers: Mapping[bytes, bytes]) -> bytes | None:
    """The token of an Authorization header; None where there is no such header. One of another scheme is no key."""
    value = headers.get(b"authorization")
    if value is None:
        return None
    scheme, _, token = value.strip().partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else b""


def _query_token(query: bytes) -> bytes | None:
    """`token=` of a query; given twice it is none. A `+` is a plus: no key has a space."""
    tokens = [part[6:] for part in query.split(b"&") if part.startswith(b"token=")]
    if not tokens:
        return None
    return unquote_to_bytes(tokens[0]) if len(tokens) == 1 else b""
