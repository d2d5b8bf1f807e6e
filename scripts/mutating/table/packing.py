"""Mutations. Packed segments."""

from __future__ import annotations

from typing import Final

from mutating.mutation import Mutation

PACKING: Final = (
    Mutation(
        "block-not-verified",
        "packing",
        "topics/storage/segments/packed_format.py",
        "if len(stored) != table.sizes[number] or checksum_of(header, number, stored) != table.sums[number]:",
        "if len(stored) != table.sizes[number]:",
        "rule 29: a changed byte of a packed file is found",
        "unit",
    ),
    Mutation(
        "block-not-bounded",
        "packing",
        "topics/storage/segments/packed_format.py",
        "found = reader.decompress(stored, max_length=size + 1)",
        "found = reader.decompress(stored)",
        "rule 29: a block takes no more memory than it says",
        "unit",
    ),
    Mutation(
        "heads-not-followed",
        "packing",
        "topics/storage/segments/packed_format.py",
        """
        if not 0 < length <= most_packed(header.block_bytes) or at > size:
            break
        """,
        "break",
        "rule 29: one changed byte costs one block at most",
        "unit",
    ),
    Mutation(
        "list-of-another-file",
        "packing",
        "topics/storage/segments/data_files.py",
        "return listed.positions if listed is not None and listed.generation == table.header.generation else _NONE",
        "return listed.positions if listed is not None else _NONE",
        "rule 29: a .del about another generation says nothing",
        "unit",
    ),
    Mutation(
        "list-not-cumulative",
        "packing",
        "topics/storage/segments/data_files.py",
        "return encode_deletions(table.header.generation, [*self._positions(path, table, listed), *added])",
        "return encode_deletions(table.header.generation, added)",
        "8.2: a deleted record never comes back",
        "unit",
    ),
    Mutation(
        "list-read-after-the-file",
        "packing",
        "topics/storage/segments/data_files.py",
        """
            if known:
                data = self._reads.read(table, _reader(file), offset, length)
                break
        """,
        """
            if known:
                data = self._reads.read(table, _reader(file), offset, length)
                listed = self._listed(path)
                break
        """,
        "8.2: a deleted record never comes back, while its segment is rewritten either",
        "unit",
    ),
    Mutation(
        "list-not-named",
        "packing",
        "topics/storage/maintenance/deletion_flags.py",
        "fs.rename(temporary, path)",
        "continue",
        "8.2: a deletion that the part does not name any more is in the files",
        "life",
    ),
    Mutation(
        "packed-beside-flags",
        "packing",
        "topics/storage/maintenance/packer.py",
        "if segment.flagged_meanwhile:",
        "if segment.flagged_meanwhile and cold:",
        "rule 29: a file that was flagged meanwhile is not replaced",
        "life",
    ),
    Mutation(
        "packed-in-a-hold",
        "packing",
        "topics/storage/maintenance/packer.py",
        "async with self._file_holds.files_of(segment_set):",
        "async with segment_set.hot_lock:",
        "rule 13: what a hold names is not replaced",
        "life",
    ),
    Mutation(
        "plain-copy-of-a-packed-file",
        "packing",
        "topics/storage/maintenance/relocator.py",
        "length = tiers.hot.stored_length(segment.topic_id, name)",
        "length = tiers.hot.length(segment.topic_id, name)",
        "8.1: a segment is moved as it is",
        "life",
    ),
)
