"""What a topic knows of its stages: whose a stage is, and which commits are remembered, with the names of the stages
that they have closed (`docs/spec/pipeline.md` section 1, `docs/spec/crash.md` 23).

A key is remembered for `WINDOW_MS`, whatever the topic's own window is, and so are its stages' names: a stage of a
finished commit accepts nothing more. Both are bounded. Writers that commit again and again use keys `<query>/<epoch>`:
of each query the latest epoch is what a repeat will ask for, so at the bound those that are not the latest of their
query go first, and the latest of all never goes. A key without a slash is a query of one epoch.

What is on its way under a key is `topics.engine.operations.stage_commits`'s affair.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

WINDOW_MS: Final = 7 * 86_400_000
"""How long a commit is remembered; the end of the window belongs to it."""

MAX_KEYS: Final = 10_000
MAX_NAMES: Final = 50_000
"""Keys, and names of closed stages, that a topic remembers: what its part of a snapshot can carry every few seconds.
At the bound keys are forgotten before their time."""


class StageOf(NamedTuple):
    """What makes a topic a stage: records in it are private until they are committed to the target."""

    target_id: int
    name: str


def stage_label(target: str, stage: str) -> str:
    """What a stage is called as a topic. No other topic can have such a name."""
    return f"{target}?stage={stage}"


class Known(NamedTuple):
    """A commit: where its records are (there may be none), when it was, which stages it closed."""

    first_seq: int
    records: int
    ts: int
    stages: tuple[str, ...]


class CommitKeys:
    """See the module. Times are those of the clock of windows, which never steps."""

    __slots__ = ("_closed", "_commits", "_latest", "_older")

    def __init__(self) -> None:
        self._commits: OrderedDict[str, Known] = OrderedDict()
        """In the order of their times."""
        self._latest: dict[str, str] = {}
        """By query, the key of its latest commit."""
        self._older: OrderedDict[str, None] = OrderedDict()
        """Keys that are not the latest of their query, in the order in which they have been superseded."""
        self._closed: dict[str, str] = {}
        """By the name of a closed stage, the key that has closed it."""

    def __len__(self) -> int:
        return len(self._commits)

    @property
    def last_at(self) -> int:
        """When the newest commit was; 0 if there is none."""
        return next(reversed(self._commits.values())).ts if self._commits else 0

    def lookup(self, key: str, now_ms: int) -> Known | None:
        """The commit under a key, within the window."""
        known = self._commits.get(key)
        return None if known is None or now_ms - known.ts > WINDOW_MS else known

    def has_closed(self, stage: str) -> bool:
        """Whether a commit that is remembered has closed a stage of this name. `expire` tells how long that is."""
        return stage in self._closed

    def remember(self, key: str, first_seq: int, count: int, ts: int, stages: Sequence[str]) -> None:
        """The stages were committed under `key` at `ts`. What is beyond the bounds is forgotten."""
        self._forget(key)
        query = _query(key)
        before = self._latest.get(query)
        if before is not None:
            self._older[before] = None
        self._latest[query] = key
        self._commits[key] = Known(first_seq, count, ts, tuple(stages))
        for stage in stages:
            self._closed[stage] = key
        while len(self._commits) > 1 and (len(self._commits) > MAX_KEYS or len(self._closed) > MAX_NAMES):
            oldest = next(iter(self._older), None)
            self._forget(next(iter(self._commits)) if oldest is None else oldest)

    def expire(self, now_ms: int) -> int:
        """Forget what is older than the window; the number of keys, which is also what the call costs."""
        removed = 0
        while self._commits:
            key = next(iter(self._commits))
            if now_ms - self._commits[key].ts <= WINDOW_MS:
                break
            self._forget(key)
            removed += 1
        return removed

    def _forget(self, key: str) -> None:
        known = self._commits.pop(key, None)
        if known is None:
            return
        self._older.pop(key, None)
        if self._latest.get(_query(key)) == key:
            del self._latest[_query(key)]
        for stage in known.stages:
            if self._closed.get(stage) == key:
                del self._closed[stage]

    def dump(self) -> list[list[Any]]:
        """`[key, first_seq, count, ts, stages]` of each, oldest first, for `load`."""
        return [[key, *known[:3], list(known.stages)] for key, known in self._commits.items()]

    @classmethod
    def load(cls, value: object) -> CommitKeys:
        """The inverse of `dump`. Raises ValueError if `value` is not something `dump` returned."""
        keys = cls()
        if not isinstance(value, list):
            raise ValueError("commit keys: not a list")
        last_ts = 0
        for entry in value:
            match entry:
                case [str(key), int(first), int(count), int(ts), list(stages)] if (
                    first > 0 and count >= 0 and ts >= last_ts and all(isinstance(stage, str) for stage in stages)
                ):
                    keys.remember(key, first, count, ts, stages)
                    last_ts = ts
                case _:
                    raise ValueError(f"commit keys: bad entry {entry!r}")
        return keys


def _query(key: str) -> str:
    return key.rpartition("/")[0] or key
