"""How many streams and sockets may be open at once, in all and for each key (`docs/spec/api.md` section 12)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Literal

from topics.config import Settings
from topics.engine.registry import Registry

Kind = Literal["sse", "ws"]


class ConnectionPlace:
    """The place of one open stream or socket. Must be closed when that has ended."""

    __slots__ = ("_kind", "_owner", "_places")

    def __init__(self, places: ConnectionPlaces, kind: Kind, owner: bytes) -> None:
        self._places: ConnectionPlaces | None = places
        self._kind: Kind = kind
        self._owner = owner

    def close(self) -> None:
        """Give the place back. May be repeated."""
        places, self._places = self._places, None
        if places is not None:
            places.give_back(self._kind, self._owner)


def share_of(cap: int, share: float) -> int:
    """Return the part of a total cap that one key may use: at least one; 0 if there is no cap."""
    return max(1, int(cap * share)) if cap else 0


class ConnectionPlaces:
    """Counts open streams and sockets. Made once, by `WatchSessions`. An owner is the digest of a key, empty if there
    are no keys."""

    def __init__(self, settings: Settings, registry: Registry) -> None:
        self._settings = settings
        self._registry = registry
        self._open: Counter[Kind] = Counter()
        self._of: Counter[bytes] = Counter()
        self.share: Callable[[], float] = lambda: 1.0
        """The share of the total cap that one key may use now, 0..1."""

    @property
    def sse(self) -> int:
        """The number of open event streams."""
        return self._open["sse"]

    @property
    def ws(self) -> int:
        """The number of open WebSockets."""
        return self._open["ws"]

    def take(self, kind: Kind, owner: bytes) -> ConnectionPlace:
        """Return a place for one more. Raises 429 at either cap."""
        maximum = self._settings.max_sse_connections
        if maximum and self.sse + self.ws >= maximum:
            raise self._registry.throttle("max_sse_connections", maximum)
        maximum = self.most_of_key()
        if owner and maximum and self._of[owner] >= maximum:
            raise self._registry.throttle("max_sse_connections_per_key", maximum)
        self._open[kind] += 1
        if owner:
            self._of[owner] += 1
        return ConnectionPlace(self, kind, owner)

    def of(self, owner: bytes) -> int:
        """The number of open streams and sockets of a key."""
        return self._of[owner]

    def most_of_key(self) -> int:
        """Return the cap for one key; 0 for no cap."""
        own, of_all = self._settings.max_sse_connections_per_key, self._settings.max_sse_connections
        shared = share_of(of_all, self.share())
        return min(own, shared) if own and shared else own or shared

    def give_back(self, kind: Kind, owner: bytes) -> None:
        """Count one less."""
        self._open[kind] -= 1
        if owner:
            self._of[owner] -= 1
            if not self._of[owner]:
                del self._of[owner]
