"""The prefixes of one watcher, and which records it wants of the topics whose names begin with them. Pure.

A key may cover only a part of a prefix. The *covered* prefixes are what is left: the prefix itself, or the longer ones
that the key covers; none if the key covers none of its names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from topics.engine.record_collector import RecordRequest
from topics.model import Consistency

MOST_PREFIXES: Final = 64
"""Prefixes of one watch session, or of one socket."""

Covered = Callable[[str], Iterable[str]]
"""Returns the parts of a prefix that a key covers, ascending, none a prefix of another (`Key.covered`)."""


class PrefixWish(NamedTuple):
    """A prefix that is watched."""

    prefix: str
    covered: tuple[str, ...]
    wish: RecordRequest
    """Which records of each topic the watcher wants."""
    consistency: Consistency = "eventual"

    def matches(self, name: str) -> bool:
        """Return True if the topic begins with the prefix, and the key covers it."""
        return name.startswith(self.covered)


class PrefixWishes:
    """The prefixes of a session or a socket. Of several that match a topic the longest wins."""

    def __init__(self, wishes: Iterable[PrefixWish] = ()) -> None:
        self._by_prefix = {wish.prefix: wish for wish in wishes}

    def __bool__(self) -> bool:
        return bool(self._by_prefix)

    def __len__(self) -> int:
        return len(self._by_prefix)

    def __contains__(self, prefix: object) -> bool:
        return prefix in self._by_prefix

    def add(self, wish: PrefixWish) -> None:
        """Add a prefix, in place of an older wish for the same one."""
        self._by_prefix[wish.prefix] = wish

    def remove(self, prefix: str) -> None:
        """Remove a prefix, if it is there."""
        self._by_prefix.pop(prefix, None)

    def of(self, name: str) -> PrefixWish | None:
        """Return the wish with the longest prefix that matches a topic; None if there is none."""
        matching = (wish for wish in self._by_prefix.values() if wish.matches(name))
        return max(matching, key=lambda wish: len(wish.prefix), default=None)

    @property
    def covered(self) -> list[str]:
        """The covered prefixes of all wishes, ascending, none a prefix of another."""
        return disjoint(prefix for wish in self._by_prefix.values() for prefix in wish.covered)


def wishes_of(
    prefixes: Iterable[str], covered: Covered, wish: Callable[[str], RecordRequest], *, consistency: Consistency
) -> PrefixWishes:
    """Return the wishes for the prefixes of a request. `wish` says which records of a prefix's topics are wanted."""
    return PrefixWishes(PrefixWish(prefix, tuple(covered(prefix)), wish(prefix), consistency) for prefix in prefixes)


def disjoint(prefixes: Iterable[str]) -> list[str]:
    """Return prefixes in ascending order, without those that begin with another one."""
    kept: list[str] = []
    for prefix in sorted(prefixes):
        if not kept or not prefix.startswith(kept[-1]):
            kept.append(prefix)
    return kept
