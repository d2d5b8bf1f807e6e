"""The object `owner`: which directory may write to the prefix, and where its rounds are (`docs/spec/bucket.md`
section 3). It is changed by conditional puts only. Pure."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

import msgspec

from topics.bucket.container import BadObject
from topics.bucket.object_names import MAX_EPOCH, MAX_NUMBER

MAX_OWNER_BYTES: Final = 64 << 10


class Owner(msgspec.Struct, kw_only=True):
    """The content of `owner`, a JSON object that people may read."""

    epoch: int
    """Rises whenever somebody takes the prefix."""
    node: str
    """The name of the machine, for people."""
    dir: str
    """The id of the data directory."""
    state: Literal["held", "free"]
    """free: given up by a clean stop, behind its last round."""
    nonce: str
    """Of the process that has written this."""
    url: str = ""
    """Where the owner answers."""
    lease_ms: int = 0
    """0: nobody takes the prefix by time."""
    renewals: int = 0
    round: int = 0
    """A recent round, from which the last one is looked for; 0 if there was none."""
    has_log: bool = True
    """False if the directory was empty when its daemon took the prefix."""

    @property
    def counts_without_base(self) -> bool:
        """Return True if somebody may have been told of records that are in this directory, even if the bucket has no
        base yet: the directory had a log before, or its daemon did not wait for a base, as it does with takeover."""
        return self.has_log or not self.lease_ms


class SeenOwner(NamedTuple):
    """`owner` as it is in the bucket."""

    owner: Owner
    etag: str


class BucketFormat(msgspec.Struct, kw_only=True):
    """The content of `FORMAT`."""

    bucket: int
    id: str


def encode_owner(owner: Owner) -> bytes:
    """Return the bytes of `owner`."""
    return msgspec.json.format(msgspec.json.encode(owner)) + b"\n"


def decode_owner(blob: bytes) -> Owner:
    """Return the owner of these bytes. Raises BadObject."""
    try:
        owner = msgspec.json.decode(blob, type=Owner)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadObject(f"it is malformed: {error}") from error
    if not 1 <= owner.epoch <= MAX_EPOCH or not 0 <= owner.round <= MAX_NUMBER or owner.lease_ms < 0:
        raise BadObject("it is malformed: a number in it cannot be")
    return owner


def encode_format(form: BucketFormat) -> bytes:
    """Return the bytes of `FORMAT`."""
    return msgspec.json.encode(form) + b"\n"


def decode_format(blob: bytes) -> BucketFormat:
    """Return the content of `FORMAT`. Raises BadObject, also if it is of a version that is not known."""
    try:
        form = msgspec.json.decode(blob, type=BucketFormat)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadObject(f"it is malformed: {error}") from error
    if form.bucket != 1:
        raise BadObject(f"it has version {form.bucket}, which this version does not know")
    return form
