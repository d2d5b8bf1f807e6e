"""The stages of a topic: which topic a stage belongs to, and the commits that are remembered, with the names of the
stages that they closed (`docs/spec/pipeline.md` section 1, `docs/spec/crash.md` 23).

A commit key and the names of its stages are remembered for `WINDOW_MS`, which does not depend on the topic's own
idempotency window: a stage of a finished commit accepts no more appends. Both numbers are bounded. Writers that commit
repeatedly use keys `<query>/<epoch>`, and a repeat asks for the latest epoch of its query. So at the bound, keys that
are not the latest of their query are forgotten first, and the latest key of all never. A key without a slash is a query
of one epoch.

Commits that are not finished are the affair of `topics.engine.operations.stage_commits`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

WINDOW_MS: Final = 7 * 86_400_000
"""How long a commit is remembered (ms). At exactly this age it is still remembered."""

MAX_KEYS: Final = 10_000
MAX_NAMES: Final = 50_000
"""Keys, and names of closed stages, that a topic remembers: as many as its part of a snapshot can carry every few
seconds. At either bound keys are forgotten before their time."""


class StageTarget(NamedTuple):
    """The target of a topic that is a stage: its records are private until they are committed to the target."""

    target_id: int
    name: str


STAGE_MARK: Final = "?stage="
"""Between the name of the target and that of the stage, in the name of a stage as a topic."""


def stage_label(target: str, stage: str) -> str:
    """Return the name of a stage as a topic. No other topic can have such a name."""
    return f"{target}{STAGE_MARK}{stage}"


class KnownCommit(NamedTuple):
    """A remembered commit: where its records are (there may be none), its time, and the stages that it closed."""

    first_seq: int
    records: int
    ts: int
    stages: tuple[str, ...]


class CommitKeys:
    """The remembered commits of one topic. Times are ms of the window clock, which never steps."""

    __slots__ = ("_closed", "_commits", "_latest", "_older")

    def __init__(self) -> None:
        self._commits: OrderedDict[str, KnownCommit] = OrderedDict()
        """The commits by key, in the order of their times."""
        self._latest: dict[str, str] = {}
        """The key of the latest commit of each query."""
        self._older: OrderedDict[str, None] = OrderedDict()
        """Keys that are not the latest of their query, in the order in which they were superseded."""
        self._closed: dict[str, str] = {}
        """For each closed stage, the key of the commit that closed it."""

    def __len__(self) -> int:
        return len(self._commits)

    @property
    def last_at(self) -> int:
        """Time of the newest commit (ms of the window clock); 0 if there is none."""
        return next(reversed(self._commits.values())).ts if self._commits else 0

    def lookup(self, key: str, now_ms: int) -> KnownCommit | None:
        """Return the commit under a key if it is within the window, else None."""
        known = self._commits.get(key)
        return None if known is None or now_ms - known.ts > WINDOW_MS else known

    def has_closed(self, stage: str) -> bool:
        """Return True if a remembered commit closed a stage of this name. `expire` ends the memory."""
        return stage in self._closed

    def remember(self, key: str, first_seq: int, count: int, ts: int, stages: Sequence[str]) -> None:
        """Remember that the stages were committed under `key` at `ts`. At the bounds older keys are forgotten."""
        self._forget(key)
        query = _query(key)
        before = self._latest.get(query)
        if before is not None:
            self._older[before] = None
        self._latest[query] = key
        self._commits[key] = KnownCommit(first_seq, count, ts, tuple(stages))
        for stage in stages:
            self._closed[stage] = key
        while len(self._commits) > 1 and (len(self._commits) > MAX_KEYS or len(self._closed) > MAX_NAMES):
            oldest = next(iter(self._older), None)
            self._forget(next(iter(self._commits)) if oldest is None else oldest)

    def expire(self, now_ms: int) -> int:
        """Forget the commits older than the window, and return how many. The cost is proportional to that number."""
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
        """Return `[key, first_seq, count, ts, stages]` for each commit, oldest first, for `load`."""
        return [[key, *known[:3], list(known.stages)] for key, known in self._commits.items()]

    @classmethod
    def load(cls, value: object) -> CommitKeys:
        """Rebuild from what `dump` returned. Raises ValueError if `value` is no such dump."""
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
