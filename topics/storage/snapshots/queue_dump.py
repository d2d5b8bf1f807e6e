"""The jobs of a queue in a snapshot: frozen in one step, encoded in slices, loaded again."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import cbor2

from topics.queue.job_projection import FrozenLeases
from topics.queue.job_results import RESULT_BYTES
from topics.queue.leases import Leases
from topics.runtime.instant import Instant

LARGE_PAGES: Final = 256
"""With more pages of jobs than this, a dump is made off the loop; so many take about 3 ms."""

DUMPED_PAGES: Final = 32
"""Pages of jobs that one call of the encoder takes: half a millisecond."""

DEFLATED_BYTES: Final = 4 << 20
"""The most bytes of pages that are deflated together: so much a load takes for them at most."""

_LEVEL: Final = 1
"""Of the compression: the fastest one."""

_DEFLATED: Final = b"\x78"
"""How deflated bytes begin (RFC 1950)."""

DUMPED_BYTES: Final = 1 << 20
"""The same bound for results, in bytes, unless one alone has more. With more, a dump is made off the loop."""


class FrozenQueue(NamedTuple):
    """A queue as of a time (ms of the window clock)."""

    as_of: int
    leases: FrozenLeases

    @property
    def is_large(self) -> bool:
        """Return True if dumping it takes longer than a step of the loop may."""
        unique = self.leases.unique
        if sum([len(result.data) + RESULT_BYTES for result in self.leases.results.values()]) > DUMPED_BYTES:
            return True
        return len(self.leases.pages) + (len(unique.entries) + len(unique.answers) if unique else 0) > LARGE_PAGES

    def dump(self, *, deflates: bool = False) -> list[Any]:
        """Return it for CBOR. Some pages at a time are encoded as CBOR of their own, so that no call of the encoder
        keeps the interpreter from the loop for long. May be called in a worker thread.

        With `deflates` they are compressed, to a third or a quarter: for many jobs, and not for the loop. The part of a
        topic stays in memory, and is copied several times when it is stored.
        """
        leases, jobs = self.leases, self.leases.dump_without_pages()
        numbers = sorted(leases.pages)
        some = (numbers[at : at + DUMPED_PAGES] for at in range(0, len(numbers), DUMPED_PAGES))
        chunks = (cbor2.dumps(leases.dump_pages(piece)) for piece in some)
        jobs["pages"] = list(map(_deflated, chunks) if deflates else chunks)
        if "results" in jobs:
            jobs["results"] = list(map(cbor2.dumps, _slices(jobs["results"])))
        return [self.as_of, jobs]


def _deflated(chunk: bytes) -> bytes:
    return chunk if len(chunk) > DEFLATED_BYTES else zlib.compress(chunk, _LEVEL)


def _inflated(chunk: bytes) -> bytes:
    """Return some pages as CBOR: an array, which does not begin like deflated bytes. Raises ValueError."""
    if not chunk.startswith(_DEFLATED):
        return chunk
    inflater = zlib.decompressobj()
    plain = inflater.decompress(chunk, DEFLATED_BYTES)
    if not inflater.eof or inflater.unused_data:
        raise ValueError("pages of jobs: deflated, and not as they are written")
    return plain


def _slices(rows: list[list[Any]]) -> Iterator[list[list[Any]]]:
    """Yield the rows of results, some at a time."""
    some: list[list[Any]] = []
    size = 0
    for row in rows:
        size += len(row[2]) + RESULT_BYTES
        if some and size > DUMPED_BYTES:
            yield some
            some, size = [], len(row[2]) + RESULT_BYTES
        some.append(row)
    yield some


def dumped_at(dumped: Sequence[Any]) -> int:
    """Return when a queue was dumped (ms of the window clock). Raises ValueError."""
    if not dumped or not isinstance(dumped[0], int):
        raise ValueError("jobs of a queue: no time")
    return dumped[0]


def load_queue(dumped: Sequence[Any], now: Instant) -> Leases:
    """Return the jobs of a queue that `FrozenQueue.dump` has dumped; `now` is not before that. Raises ValueError."""
    try:
        _, jobs = dumped
        pages = [page for chunk in jobs["pages"] for page in cbor2.loads(_inflated(chunk))]
        results = [row for chunk in jobs.get("results", ()) for row in cbor2.loads(chunk)]
        return Leases.load({**jobs, "pages": pages, "results": results}, now)
    except (TypeError, KeyError, AttributeError, zlib.error, cbor2.CBORDecodeError) as error:
        raise ValueError(f"jobs of a queue: {error!r}") from error
