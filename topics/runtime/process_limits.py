"""Limits of the process: how many files it may open, and how the C library keeps freed memory.

Connections, logs and segments all need file descriptors; `most_connections` divides them.
"""

from __future__ import annotations

import ctypes
import resource
from typing import Final

ENOUGH_FILES: Final = 10_000
"""With fewer descriptors the start logs a warning, because the caps on connections cannot be reached
(`docs/spec/runtime.md` section 1)."""

LEAST_OWN_FILES: Final = 64
"""Descriptors that are never given to clients: for listeners, WAL files, the audit log and segments being read."""

_M_ARENA_MAX: Final = -8  # malloc.h


def raise_file_limit() -> str | None:
    """Raise the soft limit on open files to the hard limit. Returns a warning for the log if the result is below
    `ENOUGH_FILES`, else None."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            pass  # some kernels refuse "unlimited"; the soft limit stays as it is
        else:
            soft = hard
    if soft != resource.RLIM_INFINITY and soft < ENOUGH_FILES:
        return f"only {soft} files may be open (RLIMIT_NOFILE); at least {ENOUGH_FILES} are advised"
    return None


def file_limit() -> int | None:
    """The soft limit on open files; None if there is no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def most_connections(files: int | None, wanted: int = 0) -> int | None:
    """How many connections clients may have if `files` files may be open; None (no limit) for None. With `wanted`
    (0: not set) no more than that.

    A quarter of the descriptors, at least `LEAST_OWN_FILES`, is kept for the log and the segments: a crowd of clients
    must not make a shard fail because it cannot open a file.
    """
    most = None if files is None else max(1, files - max(LEAST_OWN_FILES, files // 4))
    return most if not wanted else wanted if most is None else min(wanted, most)


def resident_bytes() -> int:
    """The memory of the process that is in RAM; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return 0


def limit_arenas(most: int) -> bool:
    """Limit the memory pools (arenas) of the C library. Return False if the C library has none (it is not glibc)."""
    try:
        return bool(ctypes.CDLL(None).mallopt(_M_ARENA_MAX, most))
    except (OSError, AttributeError):
        return False


def trim_memory() -> bool:
    """Blocking: have the C library return unused memory to the system. Return False if there was none to return, or if
    the C library cannot (it is not glibc). Takes some milliseconds and releases the interpreter lock."""
    try:
        return bool(ctypes.CDLL(None).malloc_trim(0))
    except (OSError, AttributeError):
        return False
