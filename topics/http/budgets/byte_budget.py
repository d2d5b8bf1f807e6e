"""How many bytes of what clients send may be in memory at once (`TOPICS_MAX_INFLIGHT_BYTES`)."""

from __future__ import annotations

from collections import deque

import trio


class ByteBudget:
    """Bytes that all requests together may hold.

    First come, first served, so that a large body is not starved by small ones.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._waiting: deque[tuple[int, trio.Event]] = deque()

    def try_take(self, size: int) -> bool:
        """Take `size` bytes if they are there and nobody is waiting."""
        if self._waiting or self.used + size > self.limit:
            return False
        self.used += size
        return True

    async def take(self, size: int, timeout_s: float) -> bool:
        """Take `size` bytes, waiting at most `timeout_s`. False, and nothing taken, if they did not become free."""
        if self.try_take(size):
            return True
        entry = (size, trio.Event())
        self._waiting.append(entry)
        try:
            with trio.move_on_after(timeout_s):
                await entry[1].wait()
        except BaseException:
            if entry[1].is_set():
                self.give_back(size)
            raise
        finally:
            if not entry[1].is_set():
                self._waiting.remove(entry)
                self._serve_waiting()
        return entry[1].is_set()

    def give_back(self, size: int) -> None:
        """Return what was taken."""
        self.used -= size
        assert self.used >= 0, "given back more than was taken"
        self._serve_waiting()

    def _serve_waiting(self) -> None:
        while self._waiting and self.used + self._waiting[0][0] <= self.limit:
            size, event = self._waiting.popleft()
            self.used += size
            event.set()
