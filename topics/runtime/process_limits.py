"""What the process gets from the operating system and the C library: file descriptors, which connections, logs and
segments all need, and memory."""

from __future__ import annotations

import ctypes
import resource
from typing import Final

ENOUGH_FILES: Final = 10_000
"""Below this many descriptors the start warns: the caps on connections cannot be reached (`docs/spec/runtime.md`
section 1)."""

LEAST_OWN_FILES: Final = 64
"""Descriptors that clients leave in any case: listeners, the log's and the audit log's files, segments being read."""

_M_ARENA_MAX: Final = -8  # malloc.h


def raise_file_limit() -> str | None:
    """Raise the soft limit on open files to the hard one. Returns a warning if what results is not `ENOUGH_FILES`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            pass  # "unlimited" is beyond what some kernels take; then the soft limit is what there is
        else:
            soft = hard
    if soft != resource.RLIM_INFINITY and soft < ENOUGH_FILES:
        return f"only {soft} files may be open (RLIMIT_NOFILE); at least {ENOUGH_FILES} are advised"
    return None


def file_limit() -> int | None:
    """How many files may be open now; None where there is no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def most_connections(files: int | None) -> int | None:
    """How many connections clients may have when so many files may be open; None for no bound.

    A quarter of the descriptors, and no fewer than `LEAST_OWN_FILES`, is kept for the log and the segments: a crowd of
    clients must not make a shard fail for want of one.
    """
    return None if files is None else max(1, files - max(LEAST_OWN_FILES, files // 4))


def limit_arenas(most: int) -> bool:
    """Have the C library keep at most so many memory pools. False where it has none to limit (not glibc)."""
    try:
        return bool(ctypes.CDLL(None).mallopt(_M_ARENA_MAX, most))
    except (OSError, AttributeError):
        return False


def trim_memory() -> bool:
    """Give the system back what the C library has of memory that nobody uses; False if there was none, or where it
    cannot (not glibc). May take some milliseconds, for a thread; the interpreter is not held."""
    try:
        return bool(ctypes.CDLL(None).malloc_trim(0))
    except (OSError, AttributeError):
        return False
