"""A lock on what a job writes to, so that a second one is refused instead of getting into its way."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from topics.cli.failures import EXIT_CONFLICT, CommandFailure


@contextmanager
def held(path: Path, refusal: str) -> Iterator[None]:
    """Hold the lock at `path`, a file that is made, during the block; it goes with the process, however that ends.
    Raises Failed with `refusal` at once if somebody else has it, on this machine or another one that mounts it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CommandFailure(refusal, EXIT_CONFLICT) from None
        yield
    finally:
        os.close(descriptor)
