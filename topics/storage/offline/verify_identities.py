"""`verify`: checks that a data directory and a cold one belong together (`identity`)."""

from __future__ import annotations

from collections.abc import Iterator

from topics.storage.cold.identity import IDENTITY, read_cold_identity, read_data_identity
from topics.storage.files.datadir import DataDirError
from topics.storage.files.fs import Fs, join
from topics.storage.offline.findings import Finding


def verify_identities(fs: Fs, data_root: str, cold_root: str | None) -> Iterator[Finding]:
    """Yield the problems of the two identities for which a start would be refused. Changes nothing."""
    root = data_root
    try:
        mine = read_data_identity(fs, data_root, cold_root)
        if cold_root is None:
            return
        root = cold_root
        its = read_cold_identity(fs, cold_root, data_root)
    except DataDirError as error:
        yield Finding(join(root, IDENTITY), None, str(error), "damage")
        return
    path = join(cold_root, IDENTITY)
    if its is None:
        if mine is not None and mine.cold is not None and not mine.pending:
            yield Finding(path, None, f"is missing: the cold directory of {data_root} has the id {mine.cold}", "damage")
    elif mine is None or its.data != mine.id or mine.cold not in (None, its.id):
        yield Finding(path, None, f"belongs to the data directory with the id {its.data}, not to {data_root}", "damage")
