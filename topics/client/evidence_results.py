"""The types of the answers about evidence (`docs/spec/evidence.md` section 1)."""

from __future__ import annotations

from msgspec import Struct, field


class Evidence(Struct, kw_only=True):
    """A signed checkpoint of a topic: the topic has had `size` records from `start_seq` on, and `root` is the root of
    their Merkle tree, in base64."""

    topic: str
    epoch: int
    origin: str
    """The name of the log, for auditors who keep checkpoints."""
    start_seq: int
    size: int
    root: str
    note: str
    """The checkpoint as a signed note, to be kept or published."""


class Inclusion(Struct, kw_only=True):
    """The proof that a record is among the first `size` leaves of the tree. Hashes are base64."""

    seq: int
    index: int
    size: int
    leaf: str
    hashes: list[str]


class Consistency(Struct, kw_only=True):
    """The proof that the tree of the first `first` leaves is the beginning of that of the first `second`. Hashes are
    base64."""

    first: int = field(name="from")
    second: int = field(name="to")
    hashes: list[str]
