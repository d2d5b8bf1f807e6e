"""What a base is made of: files of segments as they are read for it."""

from __future__ import annotations

import pytest

from tests.simulation.disk import SimFs
from topics.bucket.bases.segment_reads import read_foreign
from topics.storage.files.datadir import segment_name
from topics.storage.files.file_header import encode_file_header
from topics.storage.segments.packed_format import PACK_HEADER_BYTES, packed_bytes
from topics.storage.segments.segment_store import DirectorySegmentStore


def test_damage_of_what_a_packed_file_has_twice_keeps_no_base_from_being_made() -> None:
    store, name = DirectorySegmentStore(SimFs(), "/data"), segment_name(1, "data")
    plain = encode_file_header(9, 1) + bytes(range(200)) * 1000
    file = packed_bytes(plain, 77, 1)
    for at in (3, PACK_HEADER_BYTES + 5, len(file) - 80, len(file) - 52, len(file) - 1):
        changed = bytearray(file)
        changed[at] ^= 1
        store.put(3, name, [bytes(changed)])
        found = read_foreign(store, 3, 1)
        assert found.data == file, "it is put as it was written"
        assert (found.salt, found.unpacked) == (9, len(plain))
    changed = bytearray(file)
    changed[PACK_HEADER_BYTES + 40] ^= 1
    store.put(3, name, [bytes(changed)])
    with pytest.raises(OSError, match="damaged"):
        read_foreign(store, 3, 1)
