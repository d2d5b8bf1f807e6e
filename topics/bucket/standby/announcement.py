"""The object `standbys/<dir>`: what a standby says of itself, for the list of replicas (`docs/design/standby.md`
section 7). Nothing is decided by it. Pure."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from topics.bucket.container import BadObject

MAX_ANNOUNCEMENT_BYTES: Final = 4096

FORGET_MS: Final = 86_400_000
"""An announcement that is so much older than the newest object (ms) goes: its standby is gone."""

MAX_NODE: Final = 255
MAX_URL: Final = 2048
"""Characters that are kept of the name of a machine, and of a URL."""


class Announcement(msgspec.Struct, kw_only=True):
    """What one standby shows, as of `at`. Times are epoch ms by the clock of the standby."""

    node: str
    """The name of its machine, for people."""
    url: str
    """Where it answers."""
    state: Literal["opening", "following", "waiting"]
    epoch: int
    round: int
    wall_ms: int
    """When the last cut that it has applied was taken."""
    lag_ms: int
    """How old what it shows may be."""
    at: int


def encode_announcement(announcement: Announcement) -> bytes:
    """Return the bytes of an announcement, at most `MAX_ANNOUNCEMENT_BYTES`."""
    short = msgspec.structs.replace(announcement, node=announcement.node[:MAX_NODE], url=announcement.url[:MAX_URL])
    return msgspec.json.encode(short) + b"\n"


def decode_announcement(blob: bytes) -> Announcement:
    """Return the announcement of these bytes. Raises BadObject."""
    try:
        found = msgspec.json.decode(blob, type=Announcement)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadObject(f"it is malformed: {error}") from error
    if min(found.epoch, found.round, found.wall_ms, found.lag_ms, found.at) < 0:
        raise BadObject("it is malformed: a number in it cannot be")
    return found
