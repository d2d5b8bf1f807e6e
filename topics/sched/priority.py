"""The priority of a topic, which orders deliveries and has no other effect (`docs/spec/semantics.md` section 7)."""

from __future__ import annotations

from typing import Final

MAX_PRIORITY: Final = 1000

_AUTO_PEAK: Final = 500
_HALF_LIFE_MS: Final = 30_000
# After ten half-lives the formula is below one half; it is cut to exactly 0, which also saves computing the power.
_FORGOTTEN_MS: Final = 300_000
# One point for every 10 ms of waiting, at most 1000: after 10 s even the lowest priority has been raised by 1000.
_WAITING_MS_PER_POINT: Final = 10
_MAX_WAITING_BONUS: Final = 1000


def effective_priority(
    config_priority: int | None, auto: bool, last_consumed_ms: int | None, now_ms: int, waiting_ms: int = 0
) -> int:
    """Return the current priority of a topic, an integer; higher is served first.

    `config_priority` if set, clamped to -1000..1000; else, if `auto`, 500 at the moment of the last consumption and
    half of that every 30 s after it (`last_consumed_ms`, None = never); else 0. `waiting_ms`, the time since the topic
    was enqueued, adds up to 1000. Only the scheduler passes it; priorities in answers are without it.
    """
    if config_priority is not None:
        base = max(-MAX_PRIORITY, min(MAX_PRIORITY, config_priority))
    elif auto and last_consumed_ms is not None:
        age_ms = max(0, now_ms - last_consumed_ms)
        base = 0 if age_ms >= _FORGOTTEN_MS else round(_AUTO_PEAK * 2.0 ** (-age_ms / _HALF_LIFE_MS))
    else:
        base = 0
    return base + min(_MAX_WAITING_BONUS, max(0, waiting_ms) // _WAITING_MS_PER_POINT)
