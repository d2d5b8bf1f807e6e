"""At which times a schedule is due: a cron expression in a time zone, or every so many milliseconds
(`docs/spec/consumers.md` section 5). Times are epoch ms.

`cronsim` is given naive local times, and this module makes moments of them: a local time that does not exist is
skipped, and one that comes twice counts at its first occurrence. The files of time zones are read when a zone is first
used.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

if TYPE_CHECKING:
    from cronsim import CronSim

MAX_CRON: Final = 200
"""Characters of a cron expression."""

MAX_ZONE: Final = 64
"""Characters of the name of a time zone."""

_FIELDS: Final = 5
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)

_FEW: Final = 16
"""So many times are looked for one after another; more are searched backwards from the end."""

_MOST_SKIPPED: Final = 3000
"""Local times in a row that do not exist, or have passed once already: zones have left out a day, or repeated one, and
a day has 1440 minutes."""

_FIRST_WINDOW_MS: Final = 3_600_000


class TimetableError(ValueError):
    """There is no such timetable. The message begins with the name of the field."""


class Timetable(Protocol):
    """When something is due. Times ascend."""

    def next_after(self, ts: int) -> int | None:
        """Return the first time after `ts`; None if there is none."""
        ...

    def newest(self, after: int, until: int, most: int) -> list[int]:
        """Return the times after `after` and up to `until`, ascending; of more than `most` the newest."""
        ...


class Every:
    """Every so many ms after a moment."""

    __slots__ = ("_anchor", "_every")

    def __init__(self, every_ms: int, anchor: int) -> None:
        self._every = every_ms
        self._anchor = anchor

    def next_after(self, ts: int) -> int:
        return self._anchor + max((ts - self._anchor) // self._every + 1, 1) * self._every

    def newest(self, after: int, until: int, most: int) -> list[int]:
        first = self.next_after(after)
        if first > until:
            return []
        count = (until - first) // self._every + 1
        return [first + i * self._every for i in range(max(count - most, 0), count)]


class Cron:
    """A cron expression of five fields, in a time zone."""

    __slots__ = ("_sim", "_zone")

    def __init__(self, expression: str, time_zone: str) -> None:
        """Raises TimetableError."""
        self._zone = zone_of(time_zone)
        self._sim = _simulator(expression)

    def next_after(self, ts: int) -> int | None:
        return next(self._after(ts), None)

    def newest(self, after: int, until: int, most: int) -> list[int]:
        found: list[int] = []
        for ts in islice(self._after(after), _FEW):
            if ts > until:
                return found[-most:]
            found.append(ts)
        if len(found) < _FEW:
            return found[-most:]
        window = max((found[-1] - found[0]) // (_FEW - 1) * most, _FIRST_WINDOW_MS)
        while True:
            begin = max(after, until - window)
            found = list(self._between(begin, until))
            if len(found) >= most or begin == after:
                return found[-most:]
            window *= 2

    def _between(self, after: int, until: int) -> Iterator[int]:
        for ts in self._after(after):
            if ts > until:
                return
            yield ts

    def _after(self, ts: int) -> Iterator[int]:
        """Yield the times after `ts`."""
        try:
            now = _EPOCH + ts * _MS
            self._sim.dt = now.astimezone(self._zone).replace(tzinfo=None, microsecond=0, fold=0)
        except OverflowError:
            return
        skipped = 0
        while skipped < _MOST_SKIPPED:
            try:
                local = next(self._sim)
                moment = local.replace(tzinfo=self._zone).astimezone(UTC)
                exists = moment.astimezone(self._zone).replace(tzinfo=None, fold=0) == local
            except (StopIteration, OverflowError, ValueError):  # none in 50 years, or after the year 9999
                return
            due = (moment - _EPOCH) // _MS
            if not exists or due <= ts:
                skipped += 1
                continue
            skipped, ts = 0, due
            yield due
            self._sim.dt = local  # another call may have moved it meanwhile


def zone_of(name: str) -> tzinfo:
    """Return a time zone. `UTC` needs no files. Raises TimetableError."""
    if name == "UTC":
        return UTC
    if not 0 < len(name) <= MAX_ZONE or not name.isascii():
        raise TimetableError("time_zone: is not the name of a time zone, such as Europe/Berlin")
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise TimetableError(
            f"time_zone: {name!r} is not known; the names are those of the system's time zones, such as Europe/Berlin"
        ) from None


def _simulator(expression: str) -> CronSim:
    # Few daemons have schedules, and starts are measured.
    from cronsim import CronSim, CronSimError  # noqa: PLC0415

    if len(expression) > MAX_CRON or not expression.isascii() or len(expression.split()) != _FIELDS:
        raise TimetableError("cron: must have five fields: minute, hour, day of month, month, day of week")
    sim: Any
    try:
        sim = CronSim(expression, datetime(2000, 1, 1))
        next(sim)
    except StopIteration:
        raise TimetableError("cron: no time in 50 years fits it") from None
    except (CronSimError, ValueError, TypeError, AssertionError, LookupError, OverflowError) as error:
        reason = str(error) if isinstance(error, CronSimError) else "it is malformed"
        raise TimetableError(f"cron: {reason[:1].lower()}{reason[1:]}") from None
    return sim  # type: ignore[no-any-return]
