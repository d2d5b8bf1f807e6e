"""Files of evidence from strangers: none of them costs memory without a bound, and none that proves nothing is made."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast
from unittest import mock

import pytest

from topics.cli.app import CommandOptions
from topics.cli.evidence_commands import KeptNote, _checkpoint, _encoded, _kept_record
from topics.cli.evidence_files import CheckedFile, Comparison, checked_file, kept_file, read_evidence
from topics.cli.failures import CommandFailure, UsageRefusal
from topics.cli.offline.verify_command import kept_checkpoint
from topics.cli.output import printable
from topics.client.errors import BadRequest, TopicsError, Unavailable
from topics.client.evidence_results import Evidence, Inclusion
from topics.evidence import proof_file
from topics.evidence.checkpoint_note import SignedCheckpoint, TreeHead
from topics.evidence.merkle import EMPTY_ROOT, GrowingTree, Leaves, perfect_root
from topics.evidence.proof_file import (
    ConsistencyPath,
    InclusionPath,
    ProofFile,
    ProvenRecord,
    check_proof,
    decode_proof,
    hashes_of,
)
from topics.evidence.proofs import BadProof, prove_consistency, prove_inclusion, root_of_range
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
        assert "more than 1 MiB" in checked_file("/dev/zero", SIGNER.verifier).problem
        with pytest.raises(UsageRefusal, match="more than 1 MiB"):
            kept_file("/dev/zero", SIGNER.verifier)
        with pytest.raises(UsageRefusal, match="more than 1 MiB"):
            kept_checkpoint("/dev/zero")


def test_a_file_that_cannot_be_read_is_one_failure_of_several(tmp_path: Path) -> None:
    gone = checked_file(str(tmp_path / "gone"), SIGNER.verifier)
    assert (gone.proven, gone.problem) == (None, "No such file or directory")


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


# ----------------------------------------------------------------- files beside one another


class Log:
    """A log of which somebody has the key: the operator."""

    def __init__(self, *records: str, tree: str = "0", topic: str = "t", epoch: int = 3) -> None:
        self.records = [ProvenRecord(seq=seq, ts=9, data=data) for seq, data in enumerate(records, 1)]
        self.origin = f"topics/{tree * 32}/{topic}/{epoch}"
        self._leaves = [record_leaf(epoch, one.seq, one.ts, b"", b"", b"", one.data.encode()) for one in self.records]

    def root_of(self, level: int, index: int) -> bytes:
        return perfect_root(b"".join(self._leaves[index : index + (1 << level)]))

    def note(self, size: int) -> str:
        """The checkpoint of the first records."""
        root = root_of_range(self, 0, size) if size else EMPTY_ROOT
        return SIGNER.sign(TreeHead(self.origin, size, root).text)

    def proof(self, seq: int | None, earlier: int | None = None) -> bytes:
        """What `prove` prints."""
        size = len(self.records)
        made = ProofFile(topics_evidence=1, checkpoint=self.note(size))
        if seq is not None:
            made.record = self.records[seq - 1]
            made.inclusion = InclusionPath(index=seq - 1, hashes=texts(prove_inclusion(self, seq - 1, size)))
        if earlier is not None:
            made.earlier = self.note(earlier)
            made.consistency = ConsistencyPath(hashes=texts(prove_consistency(self, earlier, size) if earlier else []))
        return _encoded(made)


def texts(hashes: list[bytes]) -> list[str]:
    return [b64encode(one).decode() for one in hashes]


class Auditor:
    """Has files, and what was kept."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def has(self, name: str, content: str | bytes) -> str:
        path = self._place / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    def finds(self, *files: str, earlier: Sequence[str] = (), topic: str | None = None) -> list[str]:
        """What `check` says: the sentences, or one that begins with `!` for each failure."""
        checked = [checked_file(path, SIGNER.verifier) for path in files]
        comparison = Comparison(checked, [kept_file(path, SIGNER.verifier) for path in earlier], topic)
        return [line.replace(f"{self._place}/", "") for file in checked for line in self._told(comparison, file)]

    @staticmethod
    def _told(comparison: Comparison, file: CheckedFile) -> list[str]:
        try:
            comparison.facts(file)
        except CommandFailure as error:
            return [f"!{error}"]
        return comparison.sentences(file)


@pytest.fixture
def auditor(tmp_path: Path) -> Auditor:
    return Auditor(tmp_path)


HONEST = Log('"a"', '"b"', '"c"')
FORGED = Log('"a"', '"x"', '"c"')
AGAIN = Log('"a"', '"x"', '"c"', tree="1", epoch=4)


def test_a_log_that_has_only_grown_is_shown_to_have(auditor: Auditor) -> None:
    monday, empty = auditor.has("monday", HONEST.note(2)), auditor.has("empty", HONEST.note(0))
    found = auditor.finds(auditor.has("proof", HONEST.proof(2, 2)), earlier=[monday, empty], topic="t")
    assert found == [
        f"proof: signed checkpoint of 3 records, {HONEST.origin}",
        'proof: the record with seq 2 is among them: "b" (1970-01-01 00:00:00.009 UTC)',
        "proof: the first 2 of them are those of monday",
        "proof: the first 0 of them are those of empty",
    ]
    assert auditor.finds(monday, earlier=[auditor.has("today", HONEST.proof(2, 2)), monday])[0][0] == "!"
    found = auditor.finds(monday, str(auditor.has("proof", HONEST.proof(None, 2))), earlier=[monday, empty])
    assert [line[0] for line in found] == ["m"] * 3 + ["p"] * 3


def test_two_roots_of_one_log_and_size_are_found_wherever_they_are(auditor: Auditor) -> None:
    good, forged = auditor.has("good", HONEST.note(2)), auditor.has("forged", FORGED.note(2))
    for found in (auditor.finds(good, forged), auditor.finds(forged, earlier=[good])):
        assert all(line.startswith("!") for line in found)
        assert all("good and forged have different roots for the same 2 records" in line for line in found)
    (line,) = auditor.finds(auditor.has("proof", FORGED.proof(2, 2)), earlier=[good])
    assert "good and the earlier checkpoint in proof have different roots" in line


def test_a_topic_that_was_made_again_is_of_another_log(auditor: Auditor) -> None:
    """The file has an earlier checkpoint of its own."""
    monday, proof_file = auditor.has("monday", HONEST.note(2)), auditor.has("proof", AGAIN.proof(2, 2))
    (found,) = auditor.finds(proof_file, earlier=[monday])
    assert "!" in found
    assert "deleted and made again" in found
    alone = auditor.finds(proof_file)
    assert alone[-1].endswith("in the file itself, which need not be one that you have kept (--earlier)")
    (found,) = auditor.finds(auditor.has("other", Log('"a"', topic="u").proof(1)), topic="t")
    assert "it is about topic 'u', and not 't'" in found


def test_a_log_that_is_longer_and_not_proved_to_have_grown_is_refused(auditor: Auditor) -> None:
    """It has the same origin, and may have been rewritten."""
    monday = auditor.has("monday", HONEST.note(2))
    for content in (FORGED.proof(2), FORGED.note(3), FORGED.proof(2, 1), HONEST.note(1)):
        (line,) = auditor.finds(auditor.has("shown", content), earlier=[monday])
        assert "!shown: nothing shows that it and" in line


def test_proofs_of_several_files_are_joined(auditor: Auditor) -> None:
    files = [auditor.has(f"proof-{size}", Log(*map(str, range(size))).proof(None, size - 1)) for size in (2, 3, 4)]
    first = auditor.has("first", Log("0").note(1))
    assert not [line for line in auditor.finds(*files, earlier=[first]) if line.startswith("!")]
    assert [line[:8] for line in auditor.finds(files[0], files[2], earlier=[first]) if "!" in line] == ["!proof-4"]


def test_what_was_kept_has_to_be_signed_by_the_key(auditor: Auditor) -> None:
    other = NoteSigner.generate().sign(TreeHead(HONEST.origin, 0, EMPTY_ROOT).text)
    with pytest.raises(UsageRefusal, match="not signed by the key"):
        kept_file(auditor.has("kept", other), SIGNER.verifier)


def test_the_proved_content_is_shown_and_harms_no_terminal(auditor: Auditor) -> None:
    log = Log('"' + "x" * 1000 + '"', '"\x1b[2J"')
    assert "(1002 in all)" in auditor.finds(auditor.has("proof", log.proof(1)))[1]
    assert len(auditor.finds(auditor.has("proof", log.proof(1)))[1]) < 500
    assert printable(auditor.finds(auditor.has("proof", log.proof(2)))[1]).endswith(
        '"\\x1b[2J" (1970-01-01 00:00:00.009 UTC)'
    )


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('"seq": 2', '"seq": 7, "seq": 2', "two members 'seq'"),
        ('"data": ', '"data": "1", "data": ', "two members 'data'"),
        ('"index"', '"index": 0, "index"', "two members 'index'"),
        ('"topics_evidence"', '"record": null, "topics_evidence"', "two members 'record'"),
        ('"seq": 2', '"author": "ann", "seq": 2', "author"),
        ('"topics_evidence"', '"author": "ann", "topics_evidence"', "author"),
        ('"tag": null', '"tag": ""', "record.tag is empty"),
        ('"node": null', '"node": ""', "record.node is empty"),
        ('"meta": null', '"meta": ""', "record.meta is empty"),
        ('"index": 1', '"index": ' + "1" * 6000, "index"),
    ],
)
def test_a_file_that_two_readers_may_read_differently_is_none(old: str, new: str, problem: str) -> None:
    text = HONEST.proof(2, 2).decode()
    assert old in text
    with pytest.raises(BadProof, match=problem):
        decode_proof(text.replace(old, new).encode())


def test_a_hash_has_one_form() -> None:
    text = b64encode(bytes(32)).decode()
    assert hashes_of([text]) == [bytes(32)]
    for other in (text[:-2] + "B=", text + "\n", text.rstrip("=")):
        with pytest.raises(BadProof, match="not base64"):
            hashes_of([other])


# ----------------------------------------------------------------- standbys


class Daemons:
    """A client whose reads go to a standby with two records; the owner has four."""

    def __init__(self, error: TopicsError) -> None:
        self._error = error
        self.asked: list[str] = []

    def _evidence(self, size: int) -> Evidence:
        return Evidence(
            topic="t", epoch=3, origin=HONEST.origin, start_seq=1, size=size, root="", note=HONEST.note(min(size, 3))
        )

    def evidence(self, topic: str) -> Evidence:
        self.asked.append("any")
        return self._evidence(2)

    def run(self, call: Any) -> Evidence:
        assert not call.only_reads
        self.asked.append("owner")
        return self._evidence(4)

    def consistency(self, topic: str, first: int, second: int | None = None) -> None:
        raise self._error


def asked(client: Daemons, seq: int | None, size: int, *, any: bool) -> Evidence:
    kept = KeptNote(
        Path("kept"), "", SignedCheckpoint.parse(SIGNER.sign(TreeHead(HONEST.origin, size, bytes(32)).text))
    )
    return _checkpoint(CommandOptions(any=any), cast("Any", client), "t", seq, kept)


def test_a_standby_that_is_behind_is_not_believed_that_something_is_missing() -> None:
    behind = Unavailable(503, "behind", "behind", {})
    for seq, size in ((4, 1), (None, 4)):
        client = Daemons(behind)
        assert asked(client, seq, size, any=True).size == 4
        assert client.asked == ["any", "owner"]
    client = Daemons(behind)
    assert asked(client, 2, 2, any=True).size == 2
    assert client.asked == ["any"]
    with pytest.raises(Unavailable):
        asked(Daemons(behind), None, 4, any=False)
    with pytest.raises(CommandFailure, match="it has lost some"):
        asked(Daemons(BadRequest(400, "invalid_request", "from", {})), None, 4, any=False)


def test_a_kept_record_is_the_one_whose_leaf_the_topic_has(tmp_path: Path) -> None:
    leaf = record_leaf(3, 7, 9, b"", b"t", b'{"k":"v"}', b'{"b": 1}')
    now = Evidence(topic="t", epoch=3, origin=HONEST.origin, start_seq=1, size=9, root="", note="")
    found = Inclusion(seq=7, index=6, size=9, leaf=b64encode(leaf).decode(), hashes=[])
    path = tmp_path / "record"
    path.write_text('{"$seq":7,"$ts":9,"$tag":"t","data":{"b": 1},"meta":{"k":"v"}}\n')
    kept = _kept_record(path, 7, now, found)
    assert (kept.seq, kept.data, kept.meta) == (7, '{"b": 1}', '{"k":"v"}')
    path.write_text('{"$seq":7,"$ts":9,"$tag":"t","data":{"b": 2},"meta":{"k":"v"}}\n')
    with pytest.raises(CommandFailure, match="does not have the record with seq 7"):
        _kept_record(path, 7, now, found)
    for text in ("", "{}", "[]", '{"$ts":-1,"data":1}', '{"$ts":1,"data":"\\ud800"'):
        path.write_text(text)
        with pytest.raises(UsageRefusal, match="--record"):
            _kept_record(path, 7, now, found)
