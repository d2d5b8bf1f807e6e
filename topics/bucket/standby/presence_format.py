"""The content of `standbys/<directory>`: what a standby tells of itself (`docs/design/standby.md` section 8). Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from topics.bucket.container import BadObject

FORGET_MS: Final = 86_400_000
"""The owner removes what a standby has told if that is older (ms)."""

MAX_STANDBY_BYTES: Final = 64 << 10


class StandbyPresence(msgspec.Struct, kw_only=True):
    """What a standby tells of itself."""

    dir: str
    node: str
    url: str
    state: str
    epoch: int
    round: int
    """The last round that is applied."""
    wall_ms: int
    """When its cut was taken (epoch ms)."""
    lag_ms: int
    told_ms: int
    """By the clock of the standby (epoch ms)."""


def encode_presence(presence: StandbyPresence) -> bytes:
    """Return the bytes of `standbys/<directory>`."""
    return msgspec.json.encode(presence) + b"\n"


def decode_presence(blob: bytes) -> StandbyPresence:
    """Return what these bytes tell. Raises BadObject."""
    try:
        return msgspec.json.decode(blob, type=StandbyPresence)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadObject(f"it is malformed: {error}") from error
