"""Replacing a damaged file by a repaired copy, over crashes.

The copy is made as `<path>.repaired.tmp`. It becomes `<path>.repaired`, the damaged file becomes `<path>.<n>.damaged`,
and then the copy gets the name of the file. A crash in between leaves the copy under `.repaired`; `finish_swaps`
completes it.
"""

from __future__ import annotations

from topics.storage.files.fs import Fs, parent


def finish_swaps(fs: Fs, directory: str) -> None:
    """Finish a swap that a crash has interrupted. Blocking."""
    for name in fs.listdir(directory):
        if name.endswith(".repaired"):
            _swap(fs, f"{directory}/{name.removesuffix('.repaired')}")


def swap_in(fs: Fs, path: str) -> None:
    """Have the synced copy `<path>.repaired.tmp` take the place of a file, which is kept aside. Blocking."""
    fs.rename(path + ".repaired.tmp", path + ".repaired")
    fs.sync_dir(parent(path))
    _swap(fs, path)


def _swap(fs: Fs, path: str) -> None:
    """Keep the original aside and give the repaired copy its name. Repeatable at every step."""
    directory = parent(path)
    number = 0
    while fs.exists(f"{path}.{number}.damaged"):
        number += 1
    if fs.exists(path):
        fs.rename(path, f"{path}.{number}.damaged")
        fs.sync_dir(directory)
    fs.rename(path + ".repaired", path)
    fs.sync_dir(directory)
