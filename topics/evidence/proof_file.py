"""One file with a record, its proof and a checkpoint, or with two checkpoints and the proof between them: all that a
check takes, without a daemon and without a network (`topics evidence prove`, `topics evidence check`).

The file is JSON. Nothing in it is believed: the verifier key comes from elsewhere.

    record        the record: `seq`, `ts`, `node`, `tag` (null for none), `meta`, `data` (JSON as stored, as text)
    inclusion     `index`, `hashes` (base64)
    checkpoint    the signed note
    earlier       a signed note of the same log
    consistency   `hashes` from `earlier` to `checkpoint`

`record` and `inclusion` go together, and so do `earlier` and `consistency`; a file has at least one of these pairs.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from topics.evidence.checkpoint_note import LogOrigin, SignedCheckpoint, TreeHead
from topics.evidence.proofs import BadProof, check_consistency, check_inclusion
from topics.evidence.record_leaf import record_leaf
from topics.evidence.signed_note import BadSignedNote, VerifierKey, from_base64

VERSION: Final = 1

MAX_HASHES: Final = 128
"""Hashes of a proof at most: a tree has fewer than 2^64 leaves."""

MAX_FILE_BYTES: Final = 256 << 20
"""A longer file is no proof: a check of a file from a stranger must not need memory without a bound."""

_MAX_U64: Final = 2**64 - 1


class ProvenRecord(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A record as its leaf has it. `meta` and `data` are JSON as stored; `meta` is null if there is none."""

    seq: int
    ts: int
    node: str | None = None
    tag: str | None = None
    meta: str | None = None
    data: str


class InclusionPath(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The proof that the record is in the tree of the checkpoint."""

    index: int
    hashes: list[str]


class ConsistencyPath(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The proof that the earlier checkpoint is of the beginning of the log."""

    hashes: list[str]


class ProofFile(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The content of a file."""

    topics_evidence: int = msgspec.field(default=0)
    checkpoint: str
    record: ProvenRecord | None = None
    inclusion: InclusionPath | None = None
    earlier: str | None = None
    consistency: ConsistencyPath | None = None


class Proven(NamedTuple):
    """What a file proves."""

    checkpoint: TreeHead
    record: ProvenRecord | None
    earlier: TreeHead | None


def encode_proof(proof: ProofFile) -> bytes:
    """Return the bytes of a file."""
    return msgspec.json.format(msgspec.json.encode(proof), indent=2) + b"\n"


def decode_proof(blob: bytes) -> ProofFile:
    """Return the content of a file. Raises BadProof."""
    try:
        proof = msgspec.json.decode(blob, type=ProofFile)
        json.loads(blob, object_pairs_hook=_refuse_duplicates)  # of members with one name another reader takes another
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise BadProof(f"it is no file of a proof: {error}") from error
    if proof.topics_evidence != VERSION:
        raise BadProof(f"it is no file of a proof of version {VERSION}")
    if (proof.record is None) is not (proof.inclusion is None):
        raise BadProof("it has one of record and inclusion without the other")
    if (proof.earlier is None) is not (proof.consistency is None):
        raise BadProof("it has one of earlier and consistency without the other")
    if proof.record is None and proof.earlier is None:
        raise BadProof("it proves nothing: it has neither a record nor an earlier checkpoint")
    if proof.record is not None:
        for name in ("node", "tag", "meta"):
            if getattr(proof.record, name) == "":
                raise BadProof(f"it is no file of a proof: record.{name} is empty, and has to be null")
    return proof


def check_proof(proof: ProofFile, key: VerifierKey) -> Proven:
    """Return what a file proves to somebody who trusts a key. Raises BadSignedNote, BadProof."""
    SignedCheckpoint.parse(proof.checkpoint).verify(key)
    if proof.earlier is not None:
        SignedCheckpoint.parse(proof.earlier).verify(key)
    return check_paths(proof)


def check_paths(proof: ProofFile) -> Proven:
    """Return what a file proves to somebody who believes its checkpoints. This call checks no signatures. Raises
    BadSignedNote, BadProof."""
    checkpoint = SignedCheckpoint.parse(proof.checkpoint).checkpoint
    origin = LogOrigin.parse(checkpoint.origin)
    if proof.record is not None and proof.inclusion is not None:
        leaf, index = _leaf_of(origin.epoch, proof.record), proof.inclusion.index
        if index >= proof.record.seq:
            raise BadProof(f"leaf {index} cannot be that of seq {proof.record.seq}: leaf 0 is at least that of seq 1")
        check_inclusion(leaf, index, checkpoint.size, hashes_of(proof.inclusion.hashes), checkpoint.root)
    earlier: TreeHead | None = None
    if proof.earlier is not None and proof.consistency is not None:
        earlier = SignedCheckpoint.parse(proof.earlier).checkpoint
        if earlier.origin != checkpoint.origin:
            raise BadProof(f"the checkpoints are of two logs, {earlier.origin} and {checkpoint.origin}")
        check_consistency(
            earlier.size, earlier.root, checkpoint.size, checkpoint.root, hashes_of(proof.consistency.hashes)
        )
    return Proven(checkpoint, proof.record, earlier)


def hashes_of(texts: list[str]) -> list[bytes]:
    """Return the hashes of a proof. Raises BadProof."""
    if len(texts) > MAX_HASHES:
        raise BadProof(f"a proof has at most {MAX_HASHES} hashes")
    try:
        hashes = [from_base64(text, "a hash of the proof is not base64") for text in texts]
    except BadSignedNote as error:
        raise BadProof(str(error)) from error
    if any(len(one) != 32 for one in hashes):
        raise BadProof("a hash of the proof has not 32 bytes")
    return hashes


def is_proof(blob: bytes) -> bool:
    """Return True if the content of a file is a proof, or wants to be; else it is a note."""
    return blob.lstrip()[:1] == b"{"


def note_in(blob: bytes) -> SignedCheckpoint:
    """Return the checkpoint in a file: that of a proof, or a note. Raises BadSignedNote."""
    if is_proof(blob):
        try:
            return SignedCheckpoint.parse(decode_proof(blob).checkpoint)
        except BadProof as error:
            raise BadSignedNote(str(error)) from error
    try:
        return SignedCheckpoint.parse(blob.decode())
    except UnicodeDecodeError as error:
        raise BadSignedNote("it is no signed note: it is not UTF-8") from error


def leaf_text(epoch: int, record: ProvenRecord) -> str:
    """Return the leaf of a record as calls and files have it, in base64. Raises BadProof."""
    return b64encode(_leaf_of(epoch, record)).decode()


class _DuplicateMember(ValueError):
    """An object has two members with one name."""


def _refuse_duplicates(members: Sequence[tuple[str, Any]]) -> None:
    """Raise _DuplicateMember if two members of an object have one name."""
    names = set()
    for name, _ in members:
        if name in names:
            raise _DuplicateMember(f"it has two members {name[:100]!r} in one object")
        names.add(name)


def _leaf_of(epoch: int, record: ProvenRecord) -> bytes:
    """Return the leaf of a record. Raises BadProof."""
    if not (0 <= record.seq <= _MAX_U64 and 0 <= record.ts <= _MAX_U64 and epoch <= _MAX_U64):
        raise BadProof("a number in the record is out of range")
    try:
        node, tag, meta, data = ((text or "").encode() for text in (record.node, record.tag, record.meta, record.data))
    except UnicodeEncodeError as error:
        raise BadProof("a text in the record is no Unicode") from error
    return record_leaf(epoch, record.seq, record.ts, node, tag, meta, data)
