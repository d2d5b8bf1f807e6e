"""Signed notes and their Ed25519 keys, as C2SP signed-note describes them.

    text, whose last byte is a newline
    (an empty line)
    U+2014 (a dash), a space, name of the key, a space, base64 of `id of the key, 4 bytes | signature, 64 bytes`

A verifier key is `name+id, 8 hex digits+base64 of (0x01 | public key)`; the id is the beginning of SHA-256 of `name,
newline, 0x01, public key`. A note may have further signatures, by other keys: they are passed over.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode, b64encode
from hashlib import sha256
from typing import Final, NamedTuple

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

KEY_NAME: Final = "topics"
"""The name of every key of a daemon. Who signs is told by the key itself; for which log, by the first line."""

MAX_NOTE_BYTES: Final = 64 << 10
"""A longer text is no note of ours, nor of a witness."""

MAX_SIGNATURES: Final = 100

_ED25519: Final = b"\x01"
_ID_BYTES: Final = 4
_KEY_BYTES: Final = 32
_SIGNATURE_BYTES: Final = 64
_NAME: Final = re.compile(r"[^\s+]+")
_LINE: Final = "\u2014 "


class BadSignedNote(ValueError):
    """A note or a key is malformed, or no signature of the note is good. The message is a sentence for people."""


class VerifierKey(NamedTuple):
    """The public half of a signer's key: it checks what that signer has signed."""

    name: str
    public: bytes

    @property
    def id(self) -> bytes:
        """The first bytes of its signatures, which tell them from those of other keys."""
        return sha256(self.name.encode() + b"\n" + _ED25519 + self.public).digest()[:_ID_BYTES]

    def __str__(self) -> str:
        return f"{self.name}+{self.id.hex()}+{b64encode(_ED25519 + self.public).decode()}"

    @classmethod
    def parse(cls, text: str) -> VerifierKey:
        """Return the key of a text. Raises BadSignedNote."""
        parts = text.strip().split("+", 2)
        problem = f"{text[:200]!r} is no verifier key: it has to be name+id+key"
        if len(parts) != 3 or _NAME.fullmatch(parts[0]) is None or not _is_unicode(parts[0]):
            raise BadSignedNote(problem)
        blob = from_base64(parts[2], problem)
        if blob[:1] != _ED25519 or len(blob) != 1 + _KEY_BYTES:
            raise BadSignedNote("the verifier key is no Ed25519 key")
        key = cls(parts[0], blob[1:])
        if key.id.hex() != parts[1]:
            raise BadSignedNote("the id in the verifier key is not that of its key: it was copied with an error")
        return key


class SignedNote(NamedTuple):
    """A note, taken apart."""

    text: str
    """With the newline at its end."""
    signatures: list[tuple[str, bytes, bytes]]
    """The name and the id of the key, and the signature, of each."""

    def verify(self, key: VerifierKey) -> None:
        """Raise BadSignedNote unless the note has a good signature by this key, and no bad one."""
        found = False
        for name, key_id, signature in self.signatures:
            if name != key.name or key_id != key.id:
                continue
            try:
                Ed25519PublicKey.from_public_bytes(key.public).verify(signature, self.text.encode())
            except (InvalidSignature, ValueError) as error:
                raise BadSignedNote("the signature of the checkpoint is not good: its text was changed") from error
            found = True
        if not found:
            raise BadSignedNote(f"the checkpoint is not signed by the key {key}")


def parse_note(note: str) -> SignedNote:
    """Return the parts of a note. Raises BadSignedNote."""
    if len(note.encode("utf-8", "surrogatepass")) > MAX_NOTE_BYTES:
        raise BadSignedNote("it is too long for a signed note")
    text, blank, lines = note.rpartition("\n\n")
    if not blank or not lines.endswith("\n"):
        raise BadSignedNote("it is no signed note: it has no empty line with signatures behind it")
    signatures = []
    for line in lines[:-1].split("\n"):
        name, space, encoded = line.removeprefix(_LINE).partition(" ")
        problem = f"it is no signed note: {line[:200]!r} is no signature"
        if not line.startswith(_LINE) or not space or _NAME.fullmatch(name) is None:
            raise BadSignedNote(problem)
        blob = from_base64(encoded, problem)
        if len(blob) <= _ID_BYTES:
            raise BadSignedNote(problem)
        signatures.append((name, blob[:_ID_BYTES], blob[_ID_BYTES:]))
        if len(signatures) > MAX_SIGNATURES:
            raise BadSignedNote(f"a note has at most {MAX_SIGNATURES} signatures")
    return SignedNote(text + "\n", signatures)


class NoteSigner:
    """A key that signs notes."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.verifier = VerifierKey(KEY_NAME, key.public_key().public_bytes_raw())

    @classmethod
    def generate(cls) -> NoteSigner:
        """Return a new key."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_pem(cls, pem: bytes) -> NoteSigner:
        """Return the key of a file: PEM, PKCS 8, without a passphrase. Raises BadSignedNote."""
        try:
            key = load_pem_private_key(pem, None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise BadSignedNote("it is not a private key in PEM without a passphrase") from error
        if not isinstance(key, Ed25519PrivateKey):
            raise BadSignedNote("it is a private key, but not one of Ed25519")
        return cls(key)

    def to_pem(self) -> bytes:
        """Return the content of a file with the key. It is a secret."""
        return self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    @property
    def hash(self) -> str:
        """The hash of the public key, by which topics know the key."""
        return key_hash(self.verifier)

    def sign(self, text: str) -> str:
        """Return the signed note of a text, which ends with a newline."""
        assert text.endswith("\n")
        signature = self._key.sign(text.encode())
        assert len(signature) == _SIGNATURE_BYTES
        blob = b64encode(self.verifier.id + signature).decode()
        return f"{text}\n{_LINE}{self.verifier.name} {blob}\n"


def key_hash(key: VerifierKey) -> str:
    """Return the hash of a public key: SHA-256, hex."""
    return sha256(key.public).hexdigest()


def _is_unicode(text: str) -> bool:
    """Return True if a text has a form in UTF-8. An argument of a command line may have bytes that are none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def from_base64(text: str, problem: str) -> bytes:
    """Return the bytes of standard base64, of which there is one form only. Raises BadSignedNote(problem)."""
    try:
        blob = b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadSignedNote(problem) from error
    if b64encode(blob).decode() != text:
        raise BadSignedNote(problem)
    return blob
