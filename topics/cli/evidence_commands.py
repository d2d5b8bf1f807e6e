"""`topics evidence ...`: checkpoints, proofs in files, and checking them (`docs/spec/evidence.md` section 1).

`check` needs neither a daemon nor a network, and believes nothing in the file: it is for people who do not trust the
daemon, and have its key from elsewhere.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
import msgspec

from topics.cli.app import CommandOptions, client_options, complete_topics, connect, examples, json_option
from topics.cli.evidence_files import CheckedFile, Comparison, checked_file, kept_file, read_evidence
from topics.cli.failures import CommandFailure, UsageRefusal, for_each
from topics.cli.output import print_json, print_line, printable

if TYPE_CHECKING:
    from topics.client import Client
    from topics.client.evidence_results import Evidence, Inclusion
    from topics.evidence.checkpoint_note import SignedCheckpoint
    from topics.evidence.proof_file import ProofFile, ProvenRecord


class _StoredRecord(msgspec.Struct):
    """A record as the daemon returns it, or `topics read --json` has printed it, its JSON byte for byte."""

    ts: int = msgspec.field(name="$ts")
    data: msgspec.Raw
    tag: str | None = msgspec.field(default=None, name="$tag")
    node: str | None = msgspec.field(default=None, name="$node")
    meta: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))


class KeptNote(NamedTuple):
    """A checkpoint that was kept, as text and taken apart, and its file."""

    path: Path
    note: str
    signed: SignedCheckpoint


@click.group(
    epilog=examples(
        "topics evidence checkpoint orders > orders.checkpoint",
        "topics evidence prove orders 4711 > proof.json",
        "topics evidence check proof.json --key topics+d3a1... --earlier orders.checkpoint",
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
@click.option(
    "--record",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The record, kept as a line of `topics read --json`, if the topic does not have it any more.",
)
@client_options
@click.pass_obj
def prove(options: CommandOptions, topic: str, seq: int | None, earlier: Path | None, record: Path | None) -> None:
    """Print a proof: that the record with this seq is in the topic, or that the topic has only grown since a
    checkpoint, or both.

    The output is one file with all that `topics evidence check` needs besides the key. A record that was deleted can be
    proved by somebody who has kept it (--record).
    """
    from topics.evidence.proof_file import VERSION, ConsistencyPath, InclusionPath, ProofFile  # noqa: PLC0415

    if seq is None and earlier is None:
        raise UsageRefusal("give the seq of a record, or --earlier FILE, or both")
    if record is not None and seq is None:
        raise UsageRefusal("--record needs the seq of the record")
    kept = _note(earlier) if earlier is not None else None
    with connect(options) as client:
        now = _checkpoint(options, client, topic, seq, kept)
        proof = ProofFile(topics_evidence=VERSION, checkpoint=now.note)
        if seq is not None:
            found = client.inclusion(topic, seq, size=now.size or None)  # of an empty tree: 404
            proof.record = _record(client, topic, seq) if record is None else _kept_record(record, seq, now, found)
            proof.inclusion = InclusionPath(index=found.index, hashes=found.hashes)
        if kept is not None:
            size = kept.signed.checkpoint.size
            hashes = client.consistency(topic, size, now.size).hashes if size else []
            proof.earlier, proof.consistency = kept.note, ConsistencyPath(hashes=hashes)
    sys.stdout.buffer.write(_encoded(proof))
    sys.stdout.buffer.flush()


def _checkpoint(
    options: CommandOptions, client: Client, topic: str, seq: int | None, kept: KeptNote | None
) -> Evidence:
    """Return a checkpoint that covers the record and the kept checkpoint. Raises CommandFailure if there is none.

    A standby may be behind: whether something is missing is believed of the owner only.
    """
    from topics.client.errors import BadRequest  # noqa: PLC0415
    from topics.client.evidence_calls import evidence as evidence_call  # noqa: PLC0415

    now = client.evidence(topic)
    kept_origin, kept_size = (kept.signed.checkpoint.origin, kept.signed.checkpoint.size) if kept else (now.origin, 0)
    if options.any and (
        (seq is not None and seq >= now.start_seq + now.size) or kept_origin != now.origin or kept_size > now.size
    ):
        now = client.run(replace(evidence_call(topic), reads=False))
    if kept is not None and kept_origin != now.origin:
        raise CommandFailure(
            f"{kept.path} is of another log: {kept_origin}, and the topic has {now.origin}. A tree is begun anew when "
            f"the topic is deleted and made again, and when its directory is restored or salvaged"
        )
    if kept is not None and kept_size > now.size:
        try:
            client.consistency(topic, kept_size)  # a standby says that it is behind
        except BadRequest:
            raise CommandFailure(
                f"{kept.path} is of {kept_size} records, and the topic has {now.size}: it has lost some"
            ) from None
        now = client.evidence(topic)
    return now


@evidence.command(
    epilog=examples(
        "topics evidence check proof.json --key topics+d3a1... --earlier monday.checkpoint",
        "topics evidence check *.checkpoint --key topics+d3a1... --topic orders",
    )
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(exists=True, dir_okay=False))
@click.option("--key", required=True, metavar="VKEY", help="The verifier key, which you have from elsewhere.")
@click.option(
    "--earlier",
    multiple=True,
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="A checkpoint that you have kept: each file has to be of this log, and proved to have only grown. Repeatable.",
)
@click.option("--topic", metavar="NAME", help="The topic that each file has to be about.")
@json_option
@click.pass_obj
def check(
    options: CommandOptions, files: tuple[str, ...], key: str, earlier: tuple[str, ...], topic: str | None
) -> None:
    """Check proofs and checkpoints. Needs neither a daemon nor a network, and trusts nothing in the files.

    The operator has the key and makes the files, so a file alone does not show that nothing was rewritten: give the
    checkpoints that you have kept, with --earlier. All that is given is compared: checkpoints of one log and one size
    must have one root. Two of different sizes are compared if a file has the proof between them.

    Exit code 1 if a file does not prove what it says, or contradicts another one.
    """
    from topics.evidence.signed_note import BadSignedNote, VerifierKey  # noqa: PLC0415

    try:
        verifier = VerifierKey.parse(key)
    except BadSignedNote as error:
        raise UsageRefusal(f"--key: {error}") from None
    kept = [kept_file(path, verifier) for path in earlier]
    checked = [checked_file(path, verifier) for path in files]
    comparison = Comparison(checked, kept, topic)

    def one(file: CheckedFile) -> None:
        facts = comparison.facts(file)
        if options.as_json:
            print_json(facts)
        else:
            for line in comparison.sentences(file):
                print_line(printable(line))

    for_each(checked, one)


def _encoded(proof: ProofFile) -> bytes:
    """Return the bytes of a proof that `check` will find good, with any signer. Raises CommandFailure."""
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


def _note(path: Path) -> KeptNote:
    """Return the note in a file of a checkpoint or of a proof."""
    from topics.evidence.proof_file import decode_proof, is_proof, note_in  # noqa: PLC0415
    from topics.evidence.signed_note import BadSignedNote  # noqa: PLC0415

    try:
        blob = read_evidence(path)
        found = note_in(blob)
    except (BadSignedNote, OSError) as error:
        raise UsageRefusal(f"--earlier {path}: {error}") from None
    return KeptNote(path, decode_proof(blob).checkpoint if is_proof(blob) else blob.decode(), found)


def _record(client: Client, topic: str, seq: int) -> ProvenRecord:
    """Return a record as its leaf has it: the JSON of data and meta byte for byte."""
    from topics.client.calls import ClientCall, topic_path  # noqa: PLC0415

    where = topic_path(topic, "records", str(seq))
    blob: bytes = client.run(ClientCall(method="GET", target=where, answer=None, repeatable=True))
    return _proven(seq, msgspec.json.decode(blob, type=_StoredRecord))


def _kept_record(path: Path, seq: int, now: Evidence, found: Inclusion) -> ProvenRecord:
    """Return the record in a file, which has to be the one whose leaf the daemon has. Raises UsageRefusal,
    CommandFailure."""
    from topics.evidence.proof_file import leaf_text  # noqa: PLC0415
    from topics.evidence.proofs import BadProof  # noqa: PLC0415

    try:
        record = _proven(seq, msgspec.json.decode(read_evidence(path), type=_StoredRecord))
        leaf = leaf_text(now.epoch, record)
    except (msgspec.DecodeError, ValueError, RecursionError, OSError, BadProof) as error:
        raise UsageRefusal(f"--record {path}: {error}") from None
    if leaf != found.leaf:
        raise CommandFailure(
            f"{path} does not have the record with seq {seq} of topic {now.topic}: its leaf is {leaf}, and that of the "
            f"topic {found.leaf}"
        )
    return record


def _proven(seq: int, found: _StoredRecord) -> ProvenRecord:
    """Return a record as a file of a proof has it."""
    from topics.evidence.proof_file import ProvenRecord  # noqa: PLC0415

    meta = bytes(found.meta).decode()
    return ProvenRecord(
        seq=seq,
        ts=found.ts,
        node=found.node,
        tag=found.tag,
        meta=None if meta == "null" else meta,
        data=bytes(found.data).decode(),
    )
