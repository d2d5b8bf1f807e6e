"""The groups of a topic in a snapshot: frozen in one step, encoded as far as they have changed, loaded again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import cbor2

from topics.groups.group import FrozenGroup, Group
from topics.runtime.instant import Instant
from topics.storage.snapshots.queue_dump import LARGE_PAGES, FrozenQueue, load_queue


class FrozenGroups(NamedTuple):
    """The groups of a topic as of a time (ms of the window clock): each encoded already, or frozen."""

    as_of: int
    groups: dict[str, tuple[int, bytes | FrozenGroup]]
    """By name, with its version."""
    encoded: dict[str, tuple[int, bytes]]
    """Where what is encoded is kept for the next time."""

    @classmethod
    def of(cls, groups: Iterable[Group], encoded: dict[str, tuple[int, bytes]], now: Instant) -> FrozenGroups:
        """Freeze groups. `encoded` has those of an earlier time, and takes what `dump` makes."""
        frozen: dict[str, tuple[int, bytes | FrozenGroup]] = {}
        for group in groups:
            known = encoded.get(group.name)
            if known is None or known[0] != group.version:
                frozen[group.name] = group.version, group.freeze(now)
            else:
                frozen[group.name] = known
        return cls(now.window, frozen, encoded)

    @property
    def is_large(self) -> bool:
        """Return True if dumping them takes longer than a step of the loop may."""
        frozen = [one.leases for _, one in self.groups.values() if isinstance(one, FrozenGroup)]
        if any(FrozenQueue(self.as_of, leases).is_large for leases in frozen if leases.results):
            return True
        return sum(len(leases.pages) for leases in frozen) > LARGE_PAGES or len(self.groups) > LARGE_PAGES

    def dump(self) -> list[Any]:
        """Return them for CBOR. May be called in a worker thread."""
        rows = []
        for name, (version, group) in self.groups.items():
            if isinstance(group, FrozenGroup):
                group = cbor2.dumps([group.head, group.finished, FrozenQueue(self.as_of, group.leases).dump()])
                self.encoded[name] = version, group
            rows.append(group)
        return [self.as_of, rows]


def groups_dumped_at(dumped: Sequence[Any]) -> int:
    """Return when groups were dumped (ms of the window clock). Raises ValueError."""
    if not dumped or not isinstance(dumped[0], int):
        raise ValueError("groups: no time")
    return dumped[0]


def load_groups(dumped: Sequence[Any], now: Instant) -> dict[str, Group]:
    """Return the groups that `FrozenGroups.dump` has dumped, by name; `now` is not before that. Raises ValueError."""
    groups: dict[str, Group] = {}
    try:
        _, rows = dumped
        for row in rows:
            head, finished, leases = cbor2.loads(row)
            group = Group.load(head, finished, load_queue(leases, now))
            if group.name in groups:
                raise ValueError(f"groups: {group.name!r} twice")
            groups[group.name] = group
    except (TypeError, KeyError, cbor2.CBORDecodeError) as error:
        raise ValueError(f"groups: {error!r}") from error
    return groups
