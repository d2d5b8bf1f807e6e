"""What a target of the fuzzers is, and how one input is given to it: within its memory, and not for ever.

Responsible for the type, for the limits and for what counts as a finding: any exception that comes out of
`try_within_limits`. Which targets there are, and what they let pass as documented, is for the modules beside this one
to say.
"""

from __future__ import annotations

import gc
import resource
import signal
import threading
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

ADDRESS_SPACE: Final = 1 << 30
"""Bytes that the process may grow by for one input, before it gets no more: a machine is not to be brought down."""
HANG_S: Final = 60
"""No input takes a second; one that takes a minute hangs, on any machine."""

STATM: Final = Path("/proc/self/statm")


class TooMuchMemory(Exception):
    """An input has made its decoder take more memory than its size explains."""


class Hang(Exception):
    """An input has kept its decoder busy for `HANG_S` seconds."""


@dataclass(frozen=True)
class Target:
    """One decoder, or one entrance.

    `take` gives it the bytes, and lets nothing pass but what is documented. `make_seeds` makes valid inputs, by having
    the product write them. `mend` corrects the lengths and checksums of what was mutated, so that what lies behind
    them is reached; `vary` replaces one value within an input, chosen by the first number, by one that it should not
    be, chosen by the second. An input may take `base_bytes` of memory, and `factor` bytes for each of its own.
    """

    name: str
    about: str
    """What is behind it, in a few words."""
    take: Callable[[bytes], None]
    make_seeds: Callable[[], Sequence[bytes]]
    mend: Callable[[bytes], bytes] | None = None
    vary: Callable[[bytes, int, int], bytes] | None = None
    most_bytes: int = 4096
    base_bytes: int = 256 << 10
    factor: int = 64
    examples: int = 100
    """Inputs that a run of the tests tries in each of the two ways."""
    slow: bool = False
    """Whether an input takes so long that the tests of it are no part of a quick run."""
    modules: Sequence[str] = field(default=("topics",))
    """What atheris instruments: packages, and modules with what is in them."""

    @cached_property
    def seeds(self) -> list[bytes]:
        """The valid inputs, none of them larger than what is fuzzed."""
        kept = [seed for seed in dict.fromkeys(self.make_seeds()) if len(seed) <= self.most_bytes]
        assert kept, f"{self.name} has no seed that is small enough"
        return kept


def try_input(target: Target, data: bytes) -> None:
    """Give an input to a target: unchanged, and mended. Any exception is a finding."""
    target.take(data)
    if target.mend is not None and (mended := target.mend(data)) != data:
        target.take(mended)


def try_within_limits(target: Target, data: bytes) -> None:
    """The same; raises Hang and TooMuchMemory as well, and MemoryError. What Python allocates is measured, which is
    what decoders make; seeds should have been tried before, so that nothing is counted that is loaded once."""
    allowed = target.base_bytes + target.factor * len(data)
    gc.collect(0)
    with _no_hang(), _bounded_address_space(), _tracing():
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        try_input(target, data)
        _, peak = tracemalloc.get_traced_memory()
    if peak - before > allowed:
        raise TooMuchMemory(f"{len(data)} bytes took {peak - before}, and {allowed} are allowed")


@contextmanager
def _tracing() -> Iterator[None]:
    if tracemalloc.is_tracing():
        yield
        return
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


@contextmanager
def _bounded_address_space() -> Iterator[None]:
    """MemoryError for what takes too much at once, natively too. Where the system knows no such limit there is none."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    if not STATM.exists():
        yield
        return
    size = int(STATM.read_text().split()[0]) * resource.getpagesize() + ADDRESS_SPACE
    most = size if before[1] == resource.RLIM_INFINITY else min(size, before[1])
    resource.setrlimit(resource.RLIMIT_AS, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@contextmanager
def _no_hang() -> Iterator[None]:
    """Raises Hang. Only where signals are handled, which is the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def give_up(_number: int, _frame: Any) -> None:
        raise Hang(f"no end after {HANG_S} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(HANG_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
