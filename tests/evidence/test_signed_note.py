"""Signed notes and checkpoints, compared with another implementation of C2SP's formats."""

from __future__ import annotations

from base64 import b64encode

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hypothesis import given
from hypothesis import strategies as st
from tlog_scales.signing import Vkey
from tlog_scales.tlog import Checkpoint

from topics.evidence.checkpoint_note import LogOrigin, SignedCheckpoint, TreeHead
from topics.evidence.signed_note import BadSignedNote, NoteSigner, VerifierKey, parse_note

SIGNER = NoteSigner.generate()
ORIGIN = LogOrigin("0123456789abcdef" * 2, "orders.eu:7", 12)
HEAD = TreeHead(str(ORIGIN), 4711, bytes(range(32)))
NOTE = SIGNER.sign(HEAD.text)
DASH = "\u2014 "


def test_another_implementation_reads_and_verifies_our_checkpoints() -> None:
    theirs = Checkpoint.from_text(NOTE)
    assert TreeHead(theirs.origin, theirs.size, theirs.root_hash) == HEAD
    assert theirs.serialize() == NOTE
    key = Vkey.from_string(str(SIGNER.verifier))
    theirs.verify(key)
    assert key.serialize() == str(SIGNER.verifier)  # type: ignore[no-untyped-call]


def test_a_checkpoint_is_what_was_signed() -> None:
    assert SignedCheckpoint.parse(NOTE).verify(SIGNER.verifier) == HEAD
    assert LogOrigin.parse(HEAD.origin) == ORIGIN
    assert VerifierKey.parse(str(SIGNER.verifier)) == SIGNER.verifier


def test_other_signatures_are_passed_over() -> None:
    other = NoteSigner.generate()
    line = other.sign(HEAD.text).rpartition("\n\n")[2]
    witness = f"{DASH}witness.example {b64encode(bytes(76)).decode()}\n"
    for note in (NOTE + line, NOTE.replace(DASH, line + DASH), NOTE + witness):
        assert SignedCheckpoint.parse(note).verify(SIGNER.verifier) == HEAD
    with pytest.raises(BadSignedNote, match="not signed by"):
        SignedCheckpoint.parse(NOTE).verify(other.verifier)


@given(st.integers(0, len(NOTE) - 1), st.characters(codec="utf-8"))
def test_a_changed_note_says_the_same_or_is_refused(place: int, character: str) -> None:
    changed = NOTE[:place] + character + NOTE[place + 1 :]
    try:
        found = SignedCheckpoint.parse(changed).verify(SIGNER.verifier)
    except BadSignedNote:
        return
    assert found == HEAD  # a bit of base64 that no byte is made of


@pytest.mark.parametrize(
    "note",
    [
        "",
        "text\n",
        "text\n\n",
        "text\n\nline\n",
        f"text\n\n{DASH}name\n",
        f"text\n\n{DASH}name !!!!\n",
        f"text\n\n{DASH}na+me {b64encode(bytes(68)).decode()}\n",
        f"text\n\n{DASH}name {b64encode(bytes(4)).decode()}\n",
        f"text\n\n{DASH}name {b64encode(bytes(68)).decode()}",
        "text\n\n" + f"{DASH}name {b64encode(bytes(68)).decode()}\n" * 101,
        "x" * 70_000 + NOTE,
    ],
)
def test_what_is_no_note_is_refused(note: str) -> None:
    with pytest.raises(BadSignedNote):
        parse_note(note)


@pytest.mark.parametrize(
    "text",
    [
        "origin\n1\n",
        f"origin\n01\n{b64encode(bytes(32)).decode()}\n",
        f"origin\n-1\n{b64encode(bytes(32)).decode()}\n",
        f"\n1\n{b64encode(bytes(32)).decode()}\n",
        f"origin\n1\n{b64encode(bytes(31)).decode()}\n",
        "origin\n1\n????\n",
    ],
)
def test_what_is_no_checkpoint_is_refused(text: str) -> None:
    with pytest.raises(BadSignedNote):
        SignedCheckpoint.parse(SIGNER.sign(text))


@pytest.mark.parametrize(
    "text", ["", "topics/x/t/1", f"topics/{'0' * 32}//1", f"topics/{'0' * 32}/t/0", f"topics/{'0' * 32}/t"]
)
def test_what_is_no_origin_is_refused(text: str) -> None:
    with pytest.raises(BadSignedNote):
        LogOrigin.parse(text)


def test_a_key_that_was_copied_with_an_error_is_refused() -> None:
    name, key_id, blob = str(SIGNER.verifier).split("+", 2)
    for text in (
        name,
        f"{name}+{key_id}",
        f"other+{key_id}+{blob}",
        f"{name}+00000000+{blob}",
        f"{name}+{key_id}+AA{blob[2:]}",
        f"{name}+{key_id}+{blob[:-4]}",
        f"{name}+{key_id}+%",
    ):
        with pytest.raises(BadSignedNote):
            VerifierKey.parse(text)


def test_a_key_is_read_from_the_file_that_it_was_written_to() -> None:
    again = NoteSigner.from_pem(SIGNER.to_pem())
    assert again.verifier == SIGNER.verifier
    assert again.hash == SIGNER.hash
    other = generate_private_key(SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for pem in (b"", b"-----BEGIN PRIVATE KEY-----\n-----END PRIVATE KEY-----\n", other):
        with pytest.raises(BadSignedNote):
            NoteSigner.from_pem(pem)
