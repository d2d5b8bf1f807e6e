"""The keys of the daemon, and what its callers use."""

from __future__ import annotations

from typing import Any

from tests.conformance.client import Client
from tests.conformance.keys import BOSS, COMBINATIONS, bearer
from tests.conformance.websocket import WebSocket

ODD = "k+y/e=%&#?@!~*'();[]{}|^`<>$-._"
"""A key of characters that mean something in a query."""

ENTRIES = [
    BOSS,
    *(f"s-{letters}:{'+'.join(letters)}" for letters in COMBINATIONS),
    "mine::mine-",
    "mine-r:r:mine-",
    "mine-w:w:mine-",
    "lister:r:l.a-|l.c-|l.c-x|l.b",
    "one:rw+d+a:l.a-1",
    "nowhere:rw:no-such-",
    f"{ODD}:r",
    # Every way to write an entry.
    "open-scopes:",
    "open-both::",
    "prefix-only::team-",
    "long:read+write",
    "mixed:r+delete",
    "pair:rw",
    "pair-and-more:rw+admin",
    "colons:r:team:a|team-c:d:",
    "UPPER:r",
]


def socket_of(client: Client, key: str) -> WebSocket:
    return WebSocket(client, headers=bearer(key).items())


RECORDS: dict[str, Any] = {"records": [{"data": 1}]}
