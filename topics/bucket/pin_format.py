"""The content of `pins/<uuid>`: a reader that needs a base for some time (`docs/spec/bucket.md` section 2). Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from topics.bucket.container import BadObject

MAX_PIN_BYTES: Final = 4096


class Pin(msgspec.Struct, kw_only=True):
    """A reader needs a base, and the rounds that go with it."""

    base: int
    expires: int
    """Until then (epoch ms)."""


def encode_pin(pin: Pin) -> bytes:
    """Return the bytes of a pin."""
    return msgspec.json.encode(pin) + b"\n"


def decode_pin(blob: bytes) -> Pin:
    """Return the pin of these bytes. Raises BadObject."""
    try:
        return msgspec.json.decode(blob, type=Pin)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadObject(f"it is malformed: {error}") from error
