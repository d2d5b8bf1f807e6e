"""The jobs of a queue in a snapshot: frozen in one step, encoded in slices, loaded again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import cbor2

from topics.queue.job_projection import FrozenLeases
from topics.queue.leases import Leases
from topics.runtime.instant import Instant

LARGE_PAGES: Final = 256
"""With more pages of jobs than this, a dump is made off the loop; so many take about 3 ms."""

DUMPED_PAGES: Final = 32
"""Pages of jobs that one call of the encoder takes: half a millisecond."""


class FrozenQueue(NamedTuple):
    """A queue as of a time (ms of the window clock)."""

    as_of: int
    leases: FrozenLeases

    @property
    def is_large(self) -> bool:
        """Return True if dumping it takes longer than a step of the loop may."""
        unique = self.leases.unique
        return len(self.leases.pages) + (len(unique.entries) + len(unique.answers) if unique else 0) > LARGE_PAGES

    def dump(self) -> list[Any]:
        """Return it for CBOR. Some pages at a time are encoded as CBOR of their own, so that no call of the encoder
        keeps the interpreter from the loop for long. May be called in a worker thread."""
        jobs = self.leases.dump()
        pages = jobs["pages"]
        jobs["pages"] = [cbor2.dumps(pages[at : at + DUMPED_PAGES]) for at in range(0, len(pages), DUMPED_PAGES)]
        return [self.as_of, jobs]


def dumped_at(dumped: Sequence[Any]) -> int:
    """Return when a queue was dumped (ms of the window clock). Raises ValueError."""
    if not dumped or not isinstance(dumped[0], int):
        raise ValueError("jobs of a queue: no time")
    return dumped[0]


def load_queue(dumped: Sequence[Any], now: Instant) -> Leases:
    """Return the jobs of a queue that `FrozenQueue.dump` has dumped; `now` is not before that. Raises ValueError."""
    try:
        _, jobs = dumped
        pages = [page for chunk in jobs["pages"] for page in cbor2.loads(chunk)]
        return Leases.load({**jobs, "pages": pages}, now)
    except (TypeError, KeyError, cbor2.CBORDecodeError) as error:
        raise ValueError(f"jobs of a queue: {error!r}") from error
