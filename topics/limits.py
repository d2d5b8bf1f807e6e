"""What the process gets from the operating system and the C library: file descriptors, which connections, logs and
segments all need, and memory."""

from __future__ import annotations

import ctypes
import resource
from typing import Final

ENOUGH_FILES: Final = 10_000
"""Below this many descriptors the start warns: the caps on connections cannot be reached (`runtime.md` section 1)."""

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


def limit_arenas(most: int) -> bool:
    """Have the C library keep at most so many memory pools. False where it has none to limit (not glibc)."""
    try:
        return bool(ctypes.CDLL(None).mallopt(_M_ARENA_MAX, most))
    except (OSError, AttributeError):
        return False
