"""A limit on the bytes of request bodies in memory at once (`TOPICS_MAX_INFLIGHT_BYTES`)."""

from __future__ import annotations

from collections import deque

import trio


class ByteBudget:
    """The bytes that all requests together hold: `used`, at most `limit`. Requests that wait get bytes in the order of
    their coming, so that small bodies do not starve a large one."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._waiting: deque[tuple[int, trio.Event]] = deque()

    def try_take(self, size: int) -> bool:
        """Take `size` bytes if they are free and nobody waits. Return True if they were taken."""
        if self._waiting or self.used + size > self.limit:
            return False
        self.used += size
        return True

    async def take(self, size: int, timeout_s: float) -> bool:
        """Take `size` bytes, and wait for them at most `timeout_s` seconds. Return False if they did not become free;
        then, and when it is cancelled, nothing is taken."""
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
        """Give back `size` bytes that were taken."""
        self.used -= size
        assert self.used >= 0, "given back more than was taken"
        self._serve_waiting()

    def _serve_waiting(self) -> None:
        while self._waiting and self.used + self._waiting[0][0] <= self.limit:
            size, event = self._waiting.popleft()
            self.used += size
            event.set()
