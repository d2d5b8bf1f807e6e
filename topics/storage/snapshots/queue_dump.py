"""The jobs of a queue as a snapshot keeps them: frozen in one step, encoded in slices, loaded again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import cbor2

from topics.queue.leases import Frozen, Leases
from topics.runtime.instant import Instant

LARGE_PAGES: Final = 256
"""Pages of jobs that are dumped in about 3 ms."""

DUMPED_PAGES: Final = 32
"""Pages of jobs that are encoded in one go: half a millisecond."""


class FrozenQueue(NamedTuple):
    """A queue as of a time (ms of the clock of windows)."""

    as_of: int
    leases: Frozen

    @property
    def is_large(self) -> bool:
        """Whether dumping it takes longer than a step of the loop may."""
        return len(self.leases.pages) > LARGE_PAGES

    def dump(self) -> list[Any]:
        """As CBOR takes it: the pages some at a time as CBOR of their own, for no call of the encoder is to keep the
        interpreter from the loop for long. May be called in a worker thread."""
        jobs = self.leases.dump()
        pages = jobs["pages"]
        jobs["pages"] = [cbor2.dumps(pages[at : at + DUMPED_PAGES]) for at in range(0, len(pages), DUMPED_PAGES)]
        return [self.as_of, jobs]


def dumped_at(dumped: Sequence[Any]) -> int:
    """When a queue was dumped, ms of the clock of windows. Raises ValueError."""
    if not dumped or not isinstance(dumped[0], int):
        raise ValueError("jobs of a queue: no time")
    return dumped[0]


def load_queue(dumped: Sequence[Any], now: Instant) -> Leases:
    """The jobs of a queue as `FrozenQueue.dump` has them; `now` is not before that. Raises ValueError."""
    try:
        _, jobs = dumped
        pages = [page for chunk in jobs["pages"] for page in cbor2.loads(chunk)]
        return Leases.load({**jobs, "pages": pages}, now)
    except (TypeError, KeyError, cbor2.CBORDecodeError) as error:
        raise ValueError(f"jobs of a queue: {error!r}") from error
