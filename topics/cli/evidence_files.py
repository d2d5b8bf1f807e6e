"""Files of evidence: reading them, and what `topics evidence check` finds in them, each by itself and compared.

Nothing in a file is believed but what the key has signed, and of that only what fits the checkpoints that the auditor
has kept (`--earlier`).
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from topics.cli.failures import CommandFailure, UsageRefusal
from topics.cli.output import count, moment
from topics.errors import shown

if TYPE_CHECKING:
    from topics.evidence.checkpoint_note import TreeHead
    from topics.evidence.log_claims import LogClaims
    from topics.evidence.proof_file import Proven, ProvenRecord
    from topics.evidence.signed_note import VerifierKey

MAX_SHOWN_DATA: Final = 300
"""Characters of the data of a record that are shown; `--json` has all of them."""


class KeptFile(NamedTuple):
    """A checkpoint that the auditor has kept, and its file."""

    path: str
    head: TreeHead


class CheckedFile(NamedTuple):
    """A file, and what it proves by itself; or the problem that it has."""

    path: str
    proven: Proven | None
    problem: str = ""


def read_evidence(path: str | PathLike[str]) -> bytes:
    """Return the content of a file with a checkpoint or a proof, which may be from a stranger, or a pipe. Raises
    OSError, also if it is longer than a proof can be: of what does not end only so much is read."""
    from topics.evidence.proof_file import MAX_FILE_BYTES  # noqa: PLC0415

    with open(path, "rb") as file:
        blob = file.read(MAX_FILE_BYTES + 1)
    if len(blob) > MAX_FILE_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {MAX_FILE_BYTES >> 20} MiB, and is no evidence", str(path))
    return blob


def kept_file(path: str, verifier: VerifierKey) -> KeptFile:
    """Return the checkpoint in a file that the auditor has kept. Raises UsageRefusal if it is none of this key."""
    from topics.evidence.proof_file import note_in  # noqa: PLC0415
    from topics.evidence.signed_note import BadSignedNote  # noqa: PLC0415

    try:
        return KeptFile(path, note_in(read_evidence(path)).verify(verifier))
    except (BadSignedNote, OSError) as error:
        raise UsageRefusal(f"--earlier {path}: {_text(error)}") from None


def checked_file(path: str, verifier: VerifierKey) -> CheckedFile:
    """Return what a file proves to somebody who trusts a key."""
    from topics.evidence.proof_file import Proven, check_proof, decode_proof, is_proof, note_in  # noqa: PLC0415
    from topics.evidence.proofs import BadProof  # noqa: PLC0415
    from topics.evidence.signed_note import BadSignedNote  # noqa: PLC0415

    try:
        blob = read_evidence(path)
        if not is_proof(blob):
            return CheckedFile(path, Proven(note_in(blob).verify(verifier), None, None))
        return CheckedFile(path, check_proof(decode_proof(blob), verifier))
    except (BadSignedNote, BadProof, OSError) as error:
        return CheckedFile(path, None, _text(error))


class Comparison:
    """Files, compared with one another, with the checkpoints that the auditor has kept, and with the topic that they
    have to be about (None: any)."""

    def __init__(self, files: Iterable[CheckedFile], kept: Sequence[KeptFile], topic: str | None) -> None:
        from topics.evidence.log_claims import LogClaims  # noqa: PLC0415

        self._kept = kept
        self._topic = topic
        self._claims: LogClaims = LogClaims()
        for path, head in kept:
            self._claims.add(head, path)
        for path, proven, _ in files:
            if proven is None:
                continue
            self._claims.add(proven.checkpoint, path)
            if proven.earlier is not None:
                self._claims.add(proven.earlier, f"the earlier checkpoint in {path}")
                self._claims.add_growth(proven.earlier, proven.checkpoint)

    def facts(self, file: CheckedFile) -> dict[str, object]:
        """Return what a file proves. Raises CommandFailure with a sentence if it does not, or contradicts another."""
        proven = file.proven
        if proven is None:
            raise CommandFailure(f"{file.path}: {file.problem}")
        problem = self._problem(proven)
        if problem:
            raise CommandFailure(f"{file.path}: {problem}")
        head, record, earlier = proven
        facts: dict[str, object] = {"file": file.path, "origin": head.origin, "size": head.size}
        if record is not None:
            facts["record"] = msgspec.to_builtins(record)
        if earlier is not None:
            facts["earlier_size"] = earlier.size
        if self._kept:
            facts["earlier"] = [path for path, _ in self._kept]
        return facts

    def sentences(self, file: CheckedFile) -> list[str]:
        """Say what `facts` has found."""
        assert file.proven is not None
        head, record, earlier = file.proven
        lines = [f"signed checkpoint of {count(head.size)} records, {head.origin}"]
        if record is not None:
            lines.append(f"the record with seq {record.seq} is among them: {_content(record)}")
        for path, kept in self._kept:
            if kept.size <= head.size:
                lines.append(f"the first {count(kept.size)} of them are those of {path}")
            else:
                lines.append(f"they are the first {count(head.size)} of those of {path}")
        if earlier is not None and earlier not in [kept for _, kept in self._kept]:
            lines.append(
                f"the first {count(earlier.size)} of them are those of the earlier checkpoint in the file itself, "
                f"which need not be one that you have kept (--earlier)"
            )
        return [f"{file.path}: {line}" for line in lines]

    def _problem(self, proven: Proven) -> str | None:
        """Return the problem of a file beside others."""
        head = proven.checkpoint
        for one in (head, *([proven.earlier] if proven.earlier is not None else [])):
            if contradiction := self._claims.contradiction(one):
                return contradiction
        if self._topic is not None and (problem := _other_topic(head, self._topic)):
            return problem
        for path, kept in self._kept:
            if kept.origin != head.origin:
                return (
                    f"it is of another log than {path}: {head.origin}, and not {kept.origin}. The topic was deleted "
                    f"and made again, or its directory was restored or salvaged, or it is another topic"
                )
            if not self._claims.is_beginning(*sorted((kept, head), key=lambda one: one.size)):
                return (
                    f"nothing shows that it and {path} are of one log that has only grown: ask for what `topics "
                    f"evidence prove TOPIC --earlier {path}` prints"
                )
        return None


def _other_topic(head: TreeHead, topic: str) -> str | None:
    """Return a sentence if a checkpoint is not about a topic."""
    from topics.evidence.checkpoint_note import LogOrigin  # noqa: PLC0415
    from topics.evidence.signed_note import BadSignedNote  # noqa: PLC0415

    try:
        found = LogOrigin.parse(head.origin).topic
    except BadSignedNote as error:
        return str(error)
    return None if found == topic else f"it is about topic {found!r}, and not {topic!r}"


def _content(record: ProvenRecord) -> str:
    """Show the content of a record, which is proved, in one line of bounded length."""
    parts = [f"{moment(record.ts)} UTC"]
    for name, text in (("tag", record.tag), ("node", record.node), ("meta", record.meta)):
        if text is not None:
            parts.append(f"{name} {shown(text)}")
    return f"{shown(record.data, MAX_SHOWN_DATA)} ({', '.join(parts)})"


def _text(error: Exception) -> str:
    return str(error.strerror if isinstance(error, OSError) else error)
