"""The idempotency keys of transactions that a topic remembers, and the answer that each stands for
(`docs/spec/consumers.md` section 1).

A key is kept in the window of the first topic of its transaction, apart from the keys of appends. Only published
transactions are in here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

FORGOTTEN_AT_ONCE: Final = 10_000
"""Transactions that one call of `expire` forgets at most: some milliseconds."""


class MemberSeqs(NamedTuple):
    """The records of a transaction in one of its topics: both ends inclusive."""

    topic: str
    first_seq: int
    last_seq: int


class KnownTransaction(NamedTuple):
    """A remembered transaction: its members in the order of the request, and its time (ms of the window clock)."""

    members: tuple[MemberSeqs, ...]
    at: int


class TransactionKeys:
    """The remembered transactions of one topic. Times are ms of the window clock, which never steps."""

    __slots__ = ("_known", "members")

    def __init__(self) -> None:
        self.members = 0
        """Topics of all remembered transactions together, each transaction by itself: what the memory grows with."""
        self._known: OrderedDict[str, KnownTransaction] = OrderedDict()
        """By key, in the order of their times."""

    def __len__(self) -> int:
        return len(self._known)

    @property
    def last_at(self) -> int:
        """Time of the newest transaction (ms of the window clock); 0 if there is none."""
        return next(reversed(self._known.values())).at if self._known else 0

    def remember(self, key: str, members: Sequence[MemberSeqs], at: int) -> None:
        """Remember the transaction under `key`, which was decided at `at`. A key that is known already stands for this
        one from now on."""
        at = max(at, self.last_at)
        before = self._known.pop(key, None)
        self._known[key] = KnownTransaction(tuple(members), at)
        self.members += len(members) - (len(before.members) if before is not None else 0)

    def lookup(self, key: str, now: int, window_ms: int) -> KnownTransaction | None:
        """Return the transaction under a key, None if there was none within the last `window_ms`. An age of exactly
        `window_ms` is still within the window; a window of 0 remembers nothing."""
        known = self._known.get(key)
        return None if known is None or window_ms <= 0 or now - known.at > window_ms else known

    def expire(self, now: int, window_ms: int, most: int = FORGOTTEN_AT_ONCE) -> int:
        """Forget the transactions older than `window_ms`, oldest first and at most `most`, and return how many."""
        removed = 0
        while self._known and removed < most:
            key, known = next(iter(self._known.items()))
            if window_ms > 0 and now - known.at <= window_ms:
                break
            del self._known[key]
            self.members -= len(known.members)
            removed += 1
        return removed

    def dump(self) -> list[list[Any]]:
        """Return `[key, at, [[topic, first, last], ...]]` for each transaction, oldest first, for `load`."""
        return [[key, known.at, [list(member) for member in known.members]] for key, known in self._known.items()]

    @classmethod
    def load(cls, value: object) -> TransactionKeys:
        """Rebuild from what `dump` returned. Raises ValueError if `value` is no such dump."""
        keys = cls()
        if not isinstance(value, list):
            raise ValueError("transaction keys: not a list")
        for entry in value:
            match entry:
                case [str(key), int(at), list(members)] if members and at >= keys.last_at:
                    keys.remember(key, members_from_wire(members), at)
                case _:
                    raise ValueError(f"transaction keys: bad entry {entry!r}")
        return keys


def members_from_wire(value: object) -> list[MemberSeqs]:
    """Return the members that `[[topic, first, last], ...]` describes. Raises ValueError if it describes none."""
    members = []
    for entry in value if isinstance(value, list) else [value]:
        match entry:
            case [str(topic), int(first), int(last)] if 0 < first <= last:
                members.append(MemberSeqs(topic, first, last))
            case _:
                raise ValueError(f"transaction keys: bad member {entry!r}")
    return members
