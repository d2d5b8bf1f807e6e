"""The key of a request, its rights, and how much it may use (`docs/spec/api.md` section 12,
`docs/design/guardrails.md`).

The gate calls `identify` before it reads a body, and sets `call.key`. Handlers check the names that they find in
bodies. If the daemon has no keys, every client has the key `OPEN`, and nothing is counted.
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
from topics.http.budgets.token_bucket import TokenBucket
from topics.http.calls import ConnectionSight
from topics.http.grants import Grant
from topics.http.routes import Route
from topics.runtime.clock import Clock
from topics.runtime.withdrawal import CURRENT


class OpenConnection(Protocol):
    """An open stream or socket."""

    key: Key

    def withdraw(self) -> None:
        """End the stream or socket, because its key no longer allows it."""

    @property
    def shows(self) -> tuple[Scope, Iterable[str]]:
        """The scopes that its key must have, and the topics that the key must cover."""

    @property
    def sight(self) -> ConnectionSight:
        """Return what operators see of it."""


class SeenConnection(NamedTuple):
    """An open connection, numbered in the order in which connections were opened, and since when it is open (epoch
    ms)."""

    number: int
    since_ms: int
    connection: OpenConnection


class EndedConnections(NamedTuple):
    """How many streams (and sockets) and how many calls a reload of the keys has ended."""

    streams: int
    calls: int


class KeyAccess:
    """The valid keys, the requests in progress and the rate of each, and the streams and calls to be ended when a key
    is withdrawn."""

    def __init__(self, settings: Settings, clock: Clock, keyring: Keyring) -> None:
        self._settings = settings
        self._clock = clock
        self._keyring = keyring
        self._in_flight: Counter[bytes] = Counter()
        self._buckets: dict[bytes, TokenBucket] = {}
        self._shown: dict[OpenConnection, SeenConnection] = {}
        self._opened = 0
        """How many streams, sockets and exports have been opened."""
        self._granted: dict[Grant, None] = {}

    # -- keys --------------------------------------------------------------------------------------------------------

    def identify(self, route: Route, headers: Mapping[bytes, bytes], query: bytes) -> Key:
        """The key of a request to `route`; `OPEN` if none is needed. Raises `401 unauthorized`."""
        if not self._keyring or (route.needs is None and (route.is_public or not self._settings.probe_auth)):
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
        """Return True if the daemon has keys, that is, access control."""
        return bool(self._keyring)

    def share(self) -> float:
        """The share of a common limit that one key may take, 0 to 1 (`TOPICS_KEY_SHARE`); 1 if there is one key
        only."""
        share = self._settings.key_share
        return share if share and len(self._keyring) > 1 else 1.0

    def name_of(self, key: Key) -> str:
        """The name of a key in the audit log; `unknown` for a request without a valid key."""
        return "unknown" if self._keyring and key is OPEN else key.name

    def current(self, key: Key) -> Key:
        """The key as it is now, after reloads: its scopes and prefixes may have changed. Raises `401 unauthorized` if
        it has been withdrawn."""
        current = self._keyring.current(key)
        if current is None:
            raise _unauthorized(known=True)
        return current

    def replace(self, keyring: Keyring) -> EndedConnections:
        """Replace the valid keys. Streams, sockets and calls that their key no longer allows are ended."""
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
        return EndedConnections(len(withdrawn), calls)

    def _refusal(self, key: Key, scopes: Scope, names: Iterable[str]) -> ApiError | None:
        """The 401 or 403 if the key, as it is now, does not allow these scopes and names; None if it does."""
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
        """How many calls with a key are running."""
        return len(self._granted)

    @contextmanager
    def granting(self, grant: Grant) -> Iterator[None]:
        """Put around a running call: its waits end when its key is withdrawn (`topics.runtime.withdrawal`)."""
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
    def showing(self, shown: OpenConnection) -> Iterator[None]:
        """Put around an open stream or socket: it is ended when its key is withdrawn."""
        self._opened += 1
        self._shown[shown] = SeenConnection(self._opened, self._clock.now_ms(), shown)
        if self._refusal(shown.key, *shown.shows) is not None:  # withdrawn while it was being opened
            shown.withdraw()
        try:
            yield
        finally:
            del self._shown[shown]

    def seen(self) -> Iterator[SeenConnection]:
        """The open streams, sockets and exports, in the order in which they were opened. Not across an await."""
        return iter(self._shown.values())

    @property
    def open_connections(self) -> int:
        """How many streams, sockets and exports are open."""
        return len(self._shown)

    @property
    def keys(self) -> Iterable[Key]:
        """The valid keys."""
        return self._keyring

    def requests_of(self, key: Key) -> int:
        """How many requests of a key are in progress."""
        return self._in_flight[key.digest]

    # -- limits ------------------------------------------------------------------------------------------------------

    def enter(self, key: Key) -> None:
        """Count one more request in progress of this key; call `leave` at its end. Raises `429 throttled` at the rate
        of the key and at `TOPICS_MAX_INFLIGHT_PER_KEY`."""
        if not key.digest:
            return
        self.check_rate(key)
        maximum = self._settings.max_inflight_per_key
        if maximum and self._in_flight[key.digest] >= maximum:
            raise throttled("max_inflight_per_key", maximum)
        self._in_flight[key.digest] += 1

    def leave(self, key: Key) -> None:
        """Count one request in progress less."""
        if not key.digest:
            return
        self._in_flight[key.digest] -= 1
        if not self._in_flight[key.digest]:
            del self._in_flight[key.digest]

    def check_rate(self, key: Key) -> None:
        """Count a request, or a command on a socket, against the rate of the key. Raises `429 throttled`."""
        rate = self._settings.rate_per_key
        if not key.digest or not any(rate):
            return
        now_ns = self._clock.perf_ns()
        bucket = self._buckets.get(key.digest)
        if bucket is None:
            bucket = self._buckets[key.digest] = TokenBucket(rate, now_ns)
        if wait_ms := bucket.admit(now_ns):
            raise throttled("rate_per_key", rate.requests or rate.bytes, retry_after_ms=wait_ms)

    def charge(self, key: Key, size: int) -> None:
        """Count bytes that were received from or sent to clients with this key against its rate."""
        bucket = self._buckets.get(key.digest)
        if bucket is not None:
            bucket.charge(size)


def _unauthorized(*, known: bool) -> ApiError:
    message = "this key is not valid" if known else "an API key is needed: Authorization: Bearer KEY"
    return unauthorized(message, token_shown=known)


def _bearer(headers: Mapping[bytes, bytes]) -> bytes | None:
    """The token of an Authorization header: None if there is no such header, empty if it has another scheme."""
    value = headers.get(b"authorization")
    if value is None:
        return None
    scheme, _, token = value.strip().partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else b""


def _query_token(query: bytes) -> bytes | None:
    """The value of `token=` in a query: None if there is none, empty if there are several. A `+` means a plus, because
    no key has a space."""
    tokens = [part[6:] for part in query.split(b"&") if part.startswith(b"token=")]
    if not tokens:
        return None
    return unquote_to_bytes(tokens[0]) if len(tokens) == 1 else b""
