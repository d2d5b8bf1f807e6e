"""The idempotency keys a topic remembers, and the appends they stand for (`api.md` section 1, "Idempotency").

Only what was published is in here. A repeat that arrives while the first call is still committing is the engine's
affair, and so is the limit on the number of keys in all topics together.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any


class DedupeWindow:
    """Keys in the order of their commits. Times are epoch milliseconds of the topic's clock, which never steps back.

    The window is a parameter of each question, because a config change applies at once to what is already remembered.
    """

    __slots__ = ("_calls",)

    def __init__(self) -> None:
        # Ordered by ts. A plain dict keeps order too, but finding its oldest entry again after each removal walks
        # over all that were removed before.
        self._calls: OrderedDict[str, tuple[int, int, int]] | None = None

    def __len__(self) -> int:
        return len(self._calls) if self._calls else 0

    def remember(self, key: str, first_seq: int, count: int, ts: int) -> None:
        """The append under `key` was committed at `ts` with seqs `first_seq` to `first_seq + count - 1`.

        A key remembered before (its window is over, or replay repeats itself) stands for this append from now on.
        """
        if self._calls is None:
            self._calls = OrderedDict()
        self._calls[key] = (first_seq, count, ts)
        self._calls.move_to_end(key)

    def lookup(self, key: str, now_ms: int, window_ms: int) -> tuple[int, int] | None:
        """First seq and count of the append under `key`, or None if there was none within the last `window_ms`.

        The end of the window belongs to it; a window of 0 is none.
        """
        call = self._calls.get(key) if self._calls else None
        if call is None or _is_over(call[2], now_ms, window_ms):
            return None
        return call[0], call[1]

    def expire(self, now_ms: int, window_ms: int) -> int:
        """Forget what is older than `window_ms`; the number of keys forgotten, which is also what the call costs."""
        calls = self._calls
        removed = 0
        while calls:
            key = next(iter(calls))
            if not _is_over(calls[key][2], now_ms, window_ms):
                return removed
            del calls[key]
            removed += 1
        self._calls = None
        return removed

    def dump(self) -> list[list[Any]]:
        """`[key, first_seq, count, ts]` of each, oldest first, for `load`."""
        return [[key, *call] for key, call in self._calls.items()] if self._calls else []

    @classmethod
    def load(cls, value: object) -> DedupeWindow:
        """The inverse of `dump`. Raises ValueError if `value` is not something `dump` returned."""
        window = cls()
        if not isinstance(value, list):
            raise ValueError("dedupe window: not a list")
        last_ts = 0
        for entry in value:
            match entry:
                case [str(key), int(first_seq), int(count), int(ts)] if first_seq > 0 and count > 0 and ts >= last_ts:
                    window.remember(key, first_seq, count, ts)
                    last_ts = ts
                case _:
                    raise ValueError(f"dedupe window: bad entry {entry!r}")
        return window


def _is_over(ts: int, now_ms: int, window_ms: int) -> bool:
    return window_ms <= 0 or now_ms - ts > window_ms
