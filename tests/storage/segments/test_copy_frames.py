"""The payloads of Forwarded frames, as an adversary may write them."""

from __future__ import annotations

import pytest

from topics.storage.segments.copy_frames import decode_recipe


@pytest.mark.parametrize("flags", [1 << 40, [0], "", None])
def test_flags_of_copies_that_are_no_bytes_are_refused(flags: object) -> None:
    """`bytes` of a number would take as much memory as the number says."""
    payload = {"kinds": [], "lens": b"", "sizes": b"", "files": [], "extents": [], "flags": flags}
    with pytest.raises(ValueError, match="flags"):
        decode_recipe(payload, lambda _place: 0)
