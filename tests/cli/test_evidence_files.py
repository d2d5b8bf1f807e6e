"""Files of evidence from strangers: none of them costs memory without a bound, and none that proves nothing is made."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest

from topics.cli.evidence_commands import _checked, _encoded, read_evidence
from topics.cli.failures import CommandFailure, UsageRefusal
from topics.cli.offline.verify_command import kept_checkpoint
from topics.evidence import proof_file
from topics.evidence.checkpoint_note import TreeHead
from topics.evidence.merkle import GrowingTree, Leaves
from topics.evidence.proof_file import InclusionPath, ProofFile, ProvenRecord, check_proof
from topics.evidence.proofs import BadProof
from topics.evidence.record_leaf import record_leaf
from topics.evidence.signed_note import BadSignedNote, NoteSigner, VerifierKey

SIGNER = NoteSigner.generate()


def proof(seq: int = 7, index: int = 0) -> ProofFile:
    """A proof of the only record of a log."""
    tree = GrowingTree()
    tree.add(Leaves(record_leaf(3, seq, 9, b"", b"", b"", b"1")))
    note = SIGNER.sign(TreeHead(f"topics/{'0' * 32}/t/3", 1, tree.root).text)
    record = ProvenRecord(seq=seq, ts=9, data="1")
    return ProofFile(topics_evidence=1, checkpoint=note, record=record, inclusion=InclusionPath(index=index, hashes=[]))


def test_a_file_without_an_end_is_read_up_to_the_bound() -> None:
    with mock.patch.object(proof_file, "MAX_FILE_BYTES", 1 << 20):
        with pytest.raises(OSError, match="more than 1 MiB"):
            read_evidence("/dev/zero")
        with pytest.raises(CommandFailure, match="/dev/zero: it has more than 1 MiB"):
            _checked("/dev/zero", SIGNER.verifier)
        with pytest.raises(UsageRefusal, match="more than 1 MiB"):
            kept_checkpoint("/dev/zero")


def test_a_file_that_cannot_be_read_is_one_failure_of_several(tmp_path: Path) -> None:
    with pytest.raises(CommandFailure, match="No such file"):
        _checked(str(tmp_path / "gone"), SIGNER.verifier)


def test_what_proves_nothing_is_not_printed_as_a_proof() -> None:
    """A topic that was made anew between two calls has another tree."""
    good = proof()
    assert _encoded(good)
    assert check_proof(good, SIGNER.verifier).record == good.record
    assert good.record is not None
    good.record.data = "2"
    with pytest.raises(CommandFailure, match="proves nothing"):
        _encoded(good)


def test_a_leaf_whose_seq_cannot_be_there_is_refused() -> None:
    """The first leaf is at least that of seq 1."""
    with pytest.raises(BadProof, match="leaf 0 cannot be that of seq 0"):
        check_proof(proof(seq=0), SIGNER.verifier)


def test_an_argument_that_is_no_unicode_is_no_key() -> None:
    with pytest.raises(BadSignedNote, match="no verifier key"):
        VerifierKey.parse(str(SIGNER.verifier).replace("topics", "to\udcffpics"))
