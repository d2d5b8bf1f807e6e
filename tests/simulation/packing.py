"""Packing where segments are tiny: every sealed segment is packed, in the smallest blocks, even if that saves no
bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from topics.config import Settings
from topics.storage.maintenance import packer, segment_rewrite
from topics.storage.segments.packed_format import MIN_BLOCK_BYTES

WORTH = 1e9
"""Every packed file is small enough."""


@contextmanager
def tiny_packing(settings: Settings) -> Iterator[None]:
    """Inside, a daemon with these settings packs everything that is sealed if it packs at all."""
    if settings.segment_compression != "zstd":
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packer, "MIN_BYTES", 1)
        patch.setattr(packer, "WORTH", WORTH)
        for module in (packer, segment_rewrite):
            patch.setattr(module, "BLOCK_BYTES", MIN_BLOCK_BYTES)
        yield
