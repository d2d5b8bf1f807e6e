"""Facts from the kernel about the file system of a directory: whether it was mounted without a break, and whether this
kernel reports failed writes.

A file system that was unmounted and mounted again looks as before, in the same boot: same device, same inodes. But its
page cache was lost with the unmount. Two things that the kernel never gives out twice show a break. The first is
available wherever the file system is mounted from, in containers too:

- the directory of the file system's own object in sysfs (ext4, xfs, f2fs): made again with each mount of the device,
  with a number that the kernel counts up (since Linux 5.5; before, it was the lowest free one);
- the unique id of the mount (`STATX_MNT_ID_UNIQUE`, since Linux 6.8), which differs in each mount namespace.
"""

from __future__ import annotations

import ctypes
import os
import struct
from typing import Final

FAILED_WRITES_TOLD: Final = (5, 8)
"""The first Linux whose syncfs(2) reports failed writes."""
_NUMBERS_COUNT_UP: Final = (5, 5)
"""The first Linux whose sysfs gives no number out twice."""

_AT_FDCWD: Final = -100
_STATX_MNT_ID_UNIQUE: Final = 0x4000
_STATX_BYTES: Final = 256
_MASK_AT: Final = 0
_MOUNT_ID_AT: Final = 0x90
_NAMED_BY_DEVICE: Final = ("ext4", "xfs", "f2fs")
"""File systems whose directories below /sys/fs have the name of the block device."""


def kernel_version() -> tuple[int, int]:
    """Return major and minor number of the running kernel; (0, 0) if unknown."""
    major, _, rest = os.uname().release.partition(".")
    minor = rest.partition(".")[0].partition("-")[0]
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else (0, 0)


def tells_of_failed_writes() -> bool:
    """Return True if a sync of a file system reports failed writes."""
    return kernel_version() >= FAILED_WRITES_TOLD


def kernel_warning() -> str | None:
    """Return a sentence for the operator if the kernel does not report failed writes, else None."""
    if tells_of_failed_writes():
        return None
    least = ".".join(map(str, FAILED_WRITES_TOLD))
    return (
        f"this kernel ({os.uname().release}) does not tell a sync of a file system of writes that have failed, "
        f"as Linux does since {least}: a checkpoint of many files may count on bytes that are not on the disk"
    )


def mount_of(path: str) -> str | None:
    """Implements `Fs.mount`. Raises OSError if the path does not exist."""
    device = os.stat(path).st_dev
    if kernel_version() >= _NUMBERS_COUNT_UP:
        name = os.path.basename(os.path.realpath(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}"))
        for kind in _NAMED_BY_DEVICE:
            try:
                return f"{kind}:{os.stat(f'/sys/fs/{kind}/{name}').st_ino:x}"
            except OSError:
                continue  # not a file system of this kind, or no sysfs
    return _unique_mount_id(path)


def _unique_mount_id(path: str) -> str | None:
    """Return the id of the mount of `path`, which no other mount has had since the boot."""
    try:
        statx = ctypes.CDLL(None, use_errno=True).statx
    except (OSError, AttributeError):
        return None
    found = ctypes.create_string_buffer(_STATX_BYTES)
    if statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_MNT_ID_UNIQUE, found) != 0:
        return None
    (mask,) = struct.unpack_from("=I", found, _MASK_AT)
    (number,) = struct.unpack_from("=Q", found, _MOUNT_ID_AT)
    return f"mount:{number:x}" if mask & _STATX_MNT_ID_UNIQUE else None
