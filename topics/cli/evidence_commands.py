"""`topics evidence ...`: checkpoints, proofs in files, and checking them (`docs/spec/evidence.md` section 1).

`check` needs neither a daemon nor a network, and believes nothing in the file: it is for whoever does not trust the
daemon, and has its key from elsewhere.
"""

from __future__ import annotations

import errno
import sys
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from topics.cli.app import CommandOptions, client_options, complete_topics, connect, examples, json_option
from topics.cli.failures import EXIT_FAILED, CommandFailure, UsageRefusal, for_each
from topics.cli.output import count, print_json, print_line, printable

if TYPE_CHECKING:
    from topics.client import Client
    from topics.evidence.checkpoint_note import SignedCheckpoint
    from topics.evidence.proof_file import ProofFile, ProvenRecord
    from topics.evidence.signed_note import VerifierKey


class _StoredRecord(msgspec.Struct):
    """A record as the daemon returns it, its JSON byte for byte."""

    ts: int = msgspec.field(name="$ts")
    data: msgspec.Raw
    tag: str | None = msgspec.field(default=None, name="$tag")
    node: str | None = msgspec.field(default=None, name="$node")
    meta: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))


@click.group(
    epilog=examples(
        "topics evidence checkpoint orders > orders.checkpoint",
        "topics evidence prove orders 4711 > proof.json",
        "topics evidence check proof.json --key topics+d3a1...",
    )
)
@client_options
def evidence() -> None:
    """Prove that a topic was not rewritten (topics with `--evidence`)."""


@evidence.command(epilog=examples("topics evidence key"))
@client_options
@click.pass_obj
def key(options: CommandOptions) -> None:
    """Print the public key of the daemon: keep it where the daemon cannot change it."""
    with connect(options) as client:
        text = client.evidence_key().strip()
    if options.as_json:
        print_json({"key": text})
    else:
        print_line(printable(text))


@evidence.command(epilog=examples("topics evidence checkpoint orders > orders.checkpoint"))
@click.argument("topic", shell_complete=complete_topics)
@client_options
@click.pass_obj
def checkpoint(options: CommandOptions, topic: str) -> None:
    """Print a signed checkpoint of a topic: how many records it has had, and a hash of all of them.

    Publish checkpoints where nobody can take them back. `topics verify --against` and `topics evidence check` compare
    the topic with them later.
    """
    with connect(options) as client:
        found = client.evidence(topic)
    if options.as_json:
        print_json(found)
    else:
        sys.stdout.write(found.note)


@evidence.command(
    epilog=examples(
        "topics evidence prove orders 4711 > proof.json",
        "topics evidence prove orders --earlier orders.checkpoint > proof.json",
    )
)
@click.argument("topic", shell_complete=complete_topics)
@click.argument("seq", type=click.IntRange(min=1), required=False)
@click.option(
    "--earlier",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A checkpoint that was kept: also prove that the topic has only grown since.",
)
@client_options
@click.pass_obj
def prove(options: CommandOptions, topic: str, seq: int | None, earlier: Path | None) -> None:
    """Print a proof: that the record with this seq is in the topic, or that the topic has only grown since a
    checkpoint, or both.

    The output is one file with all that `topics evidence check` needs besides the key.
    """
    from topics.evidence.proof_file import VERSION, ConsistencyPath, InclusionPath, ProofFile  # noqa: PLC0415

    if seq is None and earlier is None:
        raise UsageRefusal("give the seq of a record, or --earlier FILE, or both")
    with connect(options) as client:
        now = client.evidence(topic)
        proof = ProofFile(topics_evidence=VERSION, checkpoint=now.note)
        if seq is not None:
            found = client.inclusion(topic, seq, size=now.size)
            proof.record = _record(client, topic, seq)
            proof.inclusion = InclusionPath(index=found.index, hashes=found.hashes)
        if earlier is not None:
            note, kept = _note(earlier)
            if kept.checkpoint.origin != now.origin:
                raise CommandFailure(
                    f"{earlier} is of another log: {kept.checkpoint.origin}, and the topic has {now.origin}. A tree is "
                    f"begun anew when the directory is restored or salvaged"
                )
            hashes: list[str] = []
            if 0 < kept.checkpoint.size <= now.size:
                hashes = client.consistency(topic, kept.checkpoint.size, now.size).hashes
            elif kept.checkpoint.size:
                raise CommandFailure(
                    f"{earlier} is of {kept.checkpoint.size} records, and the topic has {now.size}: it has lost some"
                )
            proof.earlier, proof.consistency = note, ConsistencyPath(hashes=hashes)
    sys.stdout.buffer.write(_encoded(proof))
    sys.stdout.buffer.flush()


@evidence.command(
    epilog=examples(
        "topics evidence check proof.json --key topics+d3a1...",
        "topics evidence check *.checkpoint --key topics+d3a1...",
    )
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(exists=True, dir_okay=False))
@click.option("--key", required=True, metavar="VKEY", help="The verifier key, which you have from elsewhere.")
@json_option
@click.pass_obj
def check(options: CommandOptions, files: tuple[str, ...], key: str) -> None:
    """Check proofs and checkpoints. Needs neither a daemon nor a network, and trusts nothing in the files.

    Exit code 1 if a file does not prove what it says.
    """
    from topics.evidence.signed_note import BadSignedNote, VerifierKey  # noqa: PLC0415

    try:
        verifier = VerifierKey.parse(key)
    except BadSignedNote as error:
        raise UsageRefusal(f"--key: {error}") from None

    def one(path: str) -> None:
        facts = _checked(path, verifier)
        if options.as_json:
            print_json(facts)
        else:
            for line in _sentences(path, facts):
                print_line(printable(line))

    for_each(files, one)


def read_evidence(path: str | PathLike[str]) -> bytes:
    """Return the content of a file with a checkpoint or a proof, which may be from a stranger, or a pipe. Raises
    OSError, also if it is longer than a proof can be: of what does not end only so much is read."""
    from topics.evidence.proof_file import MAX_FILE_BYTES  # noqa: PLC0415

    with open(path, "rb") as file:
        blob = file.read(MAX_FILE_BYTES + 1)
    if len(blob) > MAX_FILE_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {MAX_FILE_BYTES >> 20} MiB, and is no evidence", str(path))
    return blob


def _checked(path: str, verifier: VerifierKey) -> dict[str, object]:
    """Return what a file proves. Raises CommandFailure."""
    from topics.evidence.proof_file import check_proof, decode_proof, note_in  # noqa: PLC0415
    from topics.evidence.proofs import BadProof  # noqa: PLC0415
    from topics.evidence.signed_note import BadSignedNote  # noqa: PLC0415

    try:
        blob = read_evidence(path)
        if blob.lstrip()[:1] != b"{":
            only = note_in(blob).verify(verifier)
            return {"file": path, "origin": only.origin, "size": only.size}
        proven = check_proof(decode_proof(blob), verifier)
    except (BadSignedNote, BadProof, OSError) as error:
        problem = error.strerror if isinstance(error, OSError) else error
        raise CommandFailure(f"{path}: {problem}", EXIT_FAILED) from None
    facts: dict[str, object] = {"file": path, "origin": proven.checkpoint.origin, "size": proven.checkpoint.size}
    if proven.record is not None:
        facts["record"] = msgspec.to_builtins(proven.record)
    if proven.earlier is not None:
        facts["earlier_size"] = proven.earlier.size
    return facts


def _sentences(path: str, facts: dict[str, object]) -> list[str]:
    """Say what a file proves."""
    size, origin = facts["size"], facts["origin"]
    assert isinstance(size, int)
    lines = [f"{path}: signed checkpoint of {count(size)} records, {origin}"]
    record = facts.get("record")
    if isinstance(record, dict):
        lines.append(f"{path}: the record with seq {record['seq']} is among them")
    earlier = facts.get("earlier_size")
    if isinstance(earlier, int):
        lines.append(f"{path}: the first {count(earlier)} of them are those of the earlier checkpoint")
    return lines


def _encoded(proof: ProofFile) -> bytes:
    """Return the bytes of a proof that `check` will find good, whoever has signed it. Raises CommandFailure."""
    from topics.evidence.proof_file import MAX_FILE_BYTES, check_paths, encode_proof  # noqa: PLC0415
    from topics.evidence.proofs import BadProof  # noqa: PLC0415
    from topics.evidence.signed_note import BadSignedNote  # noqa: PLC0415

    try:
        check_paths(proof)
    except (BadSignedNote, BadProof) as error:
        raise CommandFailure(
            f"what the daemon has answered proves nothing: {error}. If the topic was made anew meanwhile, try again"
        ) from None
    blob = encode_proof(proof)
    if len(blob) > MAX_FILE_BYTES:
        raise CommandFailure(f"the proof has {len(blob)} bytes, and `check` reads at most {MAX_FILE_BYTES}")
    return blob


def _note(path: Path) -> tuple[str, SignedCheckpoint]:
    """Return the note in a file of a checkpoint or of a proof, as text and taken apart."""
    from topics.evidence.proof_file import decode_proof, note_in  # noqa: PLC0415
    from topics.evidence.signed_note import BadSignedNote  # noqa: PLC0415

    try:
        blob = read_evidence(path)
        found = note_in(blob)
    except (BadSignedNote, OSError) as error:
        raise UsageRefusal(f"--earlier {path}: {error}") from None
    text = decode_proof(blob).checkpoint if blob.lstrip()[:1] == b"{" else blob.decode()
    return text, found


def _record(client: Client, topic: str, seq: int) -> ProvenRecord:
    """Return a record as its leaf has it: the JSON of data and meta byte for byte."""
    from topics.client.calls import ClientCall, topic_path  # noqa: PLC0415
    from topics.evidence.proof_file import ProvenRecord  # noqa: PLC0415

    where = topic_path(topic, "records", str(seq))
    blob: bytes = client.run(ClientCall(method="GET", target=where, answer=None, repeatable=True))
    found = msgspec.json.decode(blob, type=_StoredRecord)
    meta = bytes(found.meta).decode()
    return ProvenRecord(
        seq=seq,
        ts=found.ts,
        node=found.node,
        tag=found.tag,
        meta=None if meta == "null" else meta,
        data=bytes(found.data).decode(),
    )
