"""What the kernel says about the file system that a directory is on: whether it has been in use without a break, and
whether this kernel tells of writes that have failed.

A file system that was unmounted and mounted again looks as before, in the same boot: same device, same inodes. But its
page cache went with the unmount. Two things that the kernel never gives out twice tell that there was a break. The one
that is there wherever it is mounted from, in containers too, comes first:

- the directory of the file system's own object in sysfs (ext4, xfs, f2fs): made anew with each mount of the device,
  with a number that the kernel counts up (since Linux 5.5; it used to be the lowest free one);
- the unique id of the mount (`STATX_MNT_ID_UNIQUE`, since Linux 6.8): another one in each mount namespace.
"""

from __future__ import annotations

import ctypes
import os
import struct
from typing import Final

FAILED_WRITES_TOLD: Final = (5, 8)
"""The first Linux whose syncfs(2) tells of writes that have failed."""
_NUMBERS_COUNT_UP: Final = (5, 5)
"""The first Linux whose sysfs gives no number out twice."""

_AT_FDCWD: Final = -100
_STATX_MNT_ID_UNIQUE: Final = 0x4000
_STATX_BYTES: Final = 256
_MASK_AT: Final = 0
_MOUNT_ID_AT: Final = 0x90
_NAMED_BY_DEVICE: Final = ("ext4", "xfs", "f2fs")
"""File systems whose directories below /sys/fs are called like the block device."""


def kernel_version() -> tuple[int, int]:
    """Major and minor number of the running kernel; (0, 0) if it does not say."""
    major, _, rest = os.uname().release.partition(".")
    minor = rest.partition(".")[0].partition("-")[0]
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else (0, 0)


def tells_of_failed_writes() -> bool:
    """Whether a sync of a file system tells of writes that have failed."""
    return kernel_version() >= FAILED_WRITES_TOLD


def kernel_warning() -> str | None:
    """A sentence for the operator where the kernel keeps failed writes to itself."""
    if tells_of_failed_writes():
        return None
    least = ".".join(map(str, FAILED_WRITES_TOLD))
    return (
        f"this kernel ({os.uname().release}) does not tell a sync of a file system of writes that have failed, "
        f"as Linux does since {least}: a checkpoint of many files may count on bytes that are not on the disk"
    )


def mount_of(path: str) -> str | None:
    """See `Fs.mount`. Raises OSError for a path that is not there."""
    device = os.stat(path).st_dev
    if kernel_version() >= _NUMBERS_COUNT_UP:
        name = os.path.basename(os.path.realpath(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}"))
        for kind in _NAMED_BY_DEVICE:
            try:
                return f"{kind}:{os.stat(f'/sys/fs/{kind}/{name}').st_ino:x}"
            except OSError:
                continue  # not of this kind, or no sysfs here
    return _unique_mount_id(path)


def _unique_mount_id(path: str) -> str | None:
    """The id of the mount that holds `path`, which no other one has had since the boot."""
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
