"""What becomes of streams whose key changes (`topics.http.access.key_access`)."""

from __future__ import annotations

from collections.abc import Iterable

from topics.auth.keys import Key, Keyring, Scope, parse_keys
from topics.config import Settings
from topics.http.access.key_access import KeyAccess
from topics.http.calls import ConnectionSight
from topics.runtime.clock import SystemClock


class Stream:
    def __init__(self, key: Key) -> None:
        self.key = key
        self.withdrawn = False

    def withdraw(self) -> None:
        self.withdrawn = True

    @property
    def shows(self) -> tuple[Scope, Iterable[str]]:
        return Scope.READ, ["orders"]

    @property
    def sight(self) -> ConnectionSight:
        return ConnectionSight("stream", "127.0.0.1:1", ["orders"], 0, 0)


def test_a_stream_whose_key_is_withdrawn_while_it_opens_ends_at_once() -> None:
    stays, goes = parse_keys("stays,goes")
    access = KeyAccess(Settings(wal_shards=1), SystemClock(), Keyring([stays, goes]))
    opening, other = Stream(goes), Stream(stays)
    assert access.replace(Keyring([stays])).streams == 0, "none is open yet"
    with access.showing(opening), access.showing(other):
        assert opening.withdrawn
        assert not other.withdrawn
        assert access.replace(Keyring(parse_keys("stays:w"))).streams == 2
        assert other.withdrawn
