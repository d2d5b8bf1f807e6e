"""The two clocks as replay finds them, and leases as of one moment (`docs/spec/crash.md` 6, `docs/spec/semantics.md`
8.2).

The retention clock continues from the latest time of anything that was written. The window clock, by which leases,
delays and the windows of keys run, must not be behind any time that was written by it. That time is known only when
everything has been read, so replay loads leases as of the moment that is known at its beginning, and moves them in the
end. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from topics.queue.leases import Leases
from topics.runtime.instant import Instant
from topics.storage.recovery.recovered_state import RecoveredTopic


class ReplayClock:
    """The times found so far. All in ms."""

    __slots__ = ("_by_wall", "retention", "started", "windows")

    def __init__(self, started: Instant, *, windows_by_wall: bool) -> None:
        """`started` is the moment of the start, as far as it is known before replay. `windows_by_wall`: there is no
        mark of the window clock, so it is taken to be not behind the retention clock."""
        self.started = started
        self.retention = 0
        """The latest time of anything that was written (epoch ms)."""
        self.windows = 0
        """The latest time of the window clock that was found."""
        self._by_wall = windows_by_wall

    def note_write(self, ts: int) -> None:
        """Note a write at `ts`, by the retention clock."""
        self.retention = max(self.retention, ts)

    def note_window(self, at: int) -> None:
        """Note a write at `at`, by the window clock."""
        self.windows = max(self.windows, at)

    def note_keys(self, topic: RecoveredTopic) -> None:
        """Note the times of the keys that the topic remembers: no window can have begun in the future."""
        if topic.keys is not None:
            self.note_window(topic.keys.last_at)
        if topic.commit_keys is not None:
            self.note_window(topic.commit_keys.last_at)
        if topic.transactions is not None:
            self.note_window(topic.transactions.last_at)

    def now(self) -> Instant:
        """Return the moment of the start. Must be called when everything has been read."""
        by_wall = self.retention if self._by_wall else 0
        return Instant(self.started.mono, max(self.started.window, self.windows, by_wall))

    def move_leases(self, topics: Iterable[RecoveredTopic]) -> Instant:
        """Move leases and delays to the moment of the start, and return this moment. No lease runs longer than it was
        granted."""
        now = self.now()
        if now != self.started:
            for topic in topics:
                if topic.queue is not None:
                    topic.queue = Leases.load(topic.queue.dump(self.started), now)
                for group in topic.groups.values():
                    group.move(Leases.load(group.leases.dump(self.started), now))
        return now
