"""What tells one mount of a file system from the next, on the kernel that this runs on."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from topics.storage.files import mounts
from topics.storage.files.mounts import kernel_version, kernel_warning, mount_of


def mount(*arguments: str) -> None:
    """Mount or unmount; skips where that is not allowed."""
    try:
        done = subprocess.run(arguments, check=False, capture_output=True, text=True, timeout=20)
    except OSError as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")


def test_one_mount_is_called_the_same_wherever_it_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    assert mount_of(str(tmp_path)) == mount_of(str(tmp_path / "below"))
    with pytest.raises(FileNotFoundError):
        mount_of(str(tmp_path / "missing"))


@pytest.mark.slow
def test_the_same_disk_mounted_again_is_called_otherwise_and_is_the_same_directory(tmp_path: Path) -> None:
    image, place = tmp_path / "image", tmp_path / "mount"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(16 << 20)
    mount("mkfs.ext4", "-q", str(image))
    seen = []
    for _ in range(2):
        mount("mount", "-o", "loop", str(image), str(place))
        try:
            seen.append((mount_of(str(place)), os.stat(place).st_ino))
        finally:
            subprocess.run(["umount", str(place)], check=True, timeout=20)
    assert seen[0][1] == seen[1][1]
    assert seen[0][0] != seen[1][0] or seen[0][0] is None


def test_without_sysfs_the_number_of_the_mount_counts_where_the_kernel_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mounts, "_NAMED_BY_DEVICE", ())
    found = mount_of(str(tmp_path))
    assert (found or "mount:").startswith("mount:")
    assert (found is not None) == (kernel_version() >= (6, 8))


@pytest.mark.parametrize(
    ("release", "version"), [("6.18.44-x", (6, 18)), ("5.10", (5, 10)), ("5.7-rc1", (5, 7)), ("odd", (0, 0))]
)
def test_the_kernel_is_asked_how_old_it_is(
    release: str, version: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = os.uname()
    changed = os.uname_result((here.sysname, here.nodename, release, here.version, here.machine))
    monkeypatch.setattr("os.uname", lambda: changed)
    assert kernel_version() == version
    assert (kernel_warning() is None) == (version >= (5, 8))
    assert release in (kernel_warning() or release)
