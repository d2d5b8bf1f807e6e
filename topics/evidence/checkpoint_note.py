"""The text of a checkpoint, as C2SP tlog-checkpoint describes it:

    origin: `topics/<uuid of the tree>/<name of the topic>/<epoch>`
    size of the tree, decimal
    root, base64

A checkpoint may have further lines, which say nothing to us.
"""

from __future__ import annotations

import re
from base64 import b64encode
from typing import Final, NamedTuple

from topics.evidence.signed_note import BadSignedNote, SignedNote, VerifierKey, from_base64, parse_note

ROOT_BYTES: Final = 32

_SIZE: Final = re.compile(r"0|[1-9][0-9]{0,19}")
_ORIGIN: Final = re.compile(r"topics/([0-9a-f]{32})/(.+)/([1-9][0-9]{0,19})", re.DOTALL)


class LogOrigin(NamedTuple):
    """The log of a checkpoint."""

    tree: str
    topic: str
    epoch: int

    def __str__(self) -> str:
        return f"topics/{self.tree}/{self.topic}/{self.epoch}"

    @classmethod
    def parse(cls, text: str) -> LogOrigin:
        """Return the origin of a text. Raises BadSignedNote."""
        found = _ORIGIN.fullmatch(text)
        if found is None:
            raise BadSignedNote(f"{text[:300]!r} is not the origin of a topic")
        return cls(found[1], found[2], int(found[3]))


class TreeHead(NamedTuple):
    """The state of a log."""

    origin: str
    size: int
    root: bytes

    @property
    def text(self) -> str:
        """What is signed."""
        return f"{self.origin}\n{self.size}\n{b64encode(self.root).decode()}\n"

    @classmethod
    def parse(cls, text: str) -> TreeHead:
        """Return the checkpoint of the text of a note. Raises BadSignedNote."""
        lines = text.split("\n")
        if len(lines) < 4 or lines[-1] or not all(lines[:3]) or _SIZE.fullmatch(lines[1]) is None:
            raise BadSignedNote("it is no checkpoint: it has to begin with the lines origin, size, root")
        root = from_base64(lines[2], "it is no checkpoint: its root is not base64")
        if len(root) != ROOT_BYTES:
            raise BadSignedNote(f"it is no checkpoint: its root has {len(root)} bytes instead of {ROOT_BYTES}")
        return cls(lines[0], int(lines[1]), root)


class SignedCheckpoint(NamedTuple):
    """A checkpoint and the note that has it."""

    checkpoint: TreeHead
    note: SignedNote

    @classmethod
    def parse(cls, note: str) -> SignedCheckpoint:
        """Return the checkpoint of a signed note, which is not verified. Raises BadSignedNote."""
        parsed = parse_note(note)
        return cls(TreeHead.parse(parsed.text), parsed)

    def verify(self, key: VerifierKey) -> TreeHead:
        """Return the checkpoint if it is signed by this key. Raises BadSignedNote."""
        self.note.verify(key)
        return self.checkpoint
