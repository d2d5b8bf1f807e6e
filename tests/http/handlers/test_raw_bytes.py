"""Whether a client that names types in `Accept` gets raw bytes or their JSON."""

from __future__ import annotations

import pytest

from topics.http.accept import qualities
from topics.http.handlers.raw_bytes import prefers_bytes


@pytest.mark.parametrize(
    ("accept", "content_type", "comes"),
    [
        (b"image/png", "image/png", True),
        (b"image/*", "image/png;a=b", True),
        (b"image/png, application/json", "image/png", True),
        (b"image/*;q=0.9, */*;q=0.8", "image/png", True),
        (b"application/cbor", "application/cbor", True),
        (b"application/cbor, application/json;q=0", "application/cbor", True),
        (b"application/*", "application/cbor", False),
        (b"application/cbor;q=0.5, application/*", "application/cbor", False),
        (b"*/*", "image/png", False),
        (b"image/png;q=0", "image/png", False),
        (b"image/png;q=0, image/*", "image/png", False),
        (b"image/jpeg, image/png;q=0.1, application/json;q=0.2", "image/png", False),
        (b"audio/*", "image/png", False),
        (b"", "image/png", False),
    ],
)
def test_bytes_are_preferred_if_their_type_is_named(accept: bytes, content_type: str, comes: bool) -> None:
    assert prefers_bytes(qualities(accept), content_type) is comes
