"""`topics verify DIR` (`docs/spec/storage.md`).

Responsible for options, progress and output; the findings are `topics.storage.offline.verify`'s. Nothing is ever
written. Results go to stdout, progress and refusals to stderr.

Exit codes: 0, 1 if there is damage, 2 for a command line or a directory that is refused.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Final

import click

from topics.cli.app import CommandOptions, examples
from topics.cli.failures import UsageRefusal
from topics.cli.offline.directory_look import (
    directory_options,
    open_directory,
    quiet,
    refuse_if_in_use,
    shown_progress,
    times,
)
from topics.cli.output import print_line, print_ndjson, printable

if TYPE_CHECKING:
    from topics.storage.offline.verify_trees import KeptCheckpoint

EXIT_DAMAGE: Final = 1


@click.command(
    epilog=examples(
        "topics verify /var/lib/topics",
        "topics verify /backup/data --cold-dir /backup/cold --json",
        "topics verify /var/lib/topics --against orders.checkpoint",
    )
)
@directory_options
@click.option(
    "--against",
    multiple=True,
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="Compare a topic with evidence with a checkpoint that was kept elsewhere. Repeatable.",
)
@click.pass_obj
def verify(
    options: CommandOptions, directory: str, cold_dir: str | None, in_use: bool, against: tuple[str, ...]
) -> None:
    """Look for damage in a data directory: every checksum and hash, indexes and tags against data, continuity, floors
    against segments, zero tails, Merkle trees. Changes nothing.

    Exit code 1 if there is damage. Notes alone are no damage: what the next start clears away, what nobody needs.
    """
    from topics.storage.offline.verify import Verification  # noqa: PLC0415

    fs = open_directory(directory, in_use=in_use)
    kept = [kept_checkpoint(path) for path in against]
    verification = Verification(fs, directory, cold_dir, in_use=in_use, against=kept)
    counts: Counter[str] = Counter()
    with quiet(), shown_progress(verification.progress, "verify"):
        for finding in verification.findings():
            counts[finding.severity] += 1
            if options.as_json:
                print_ndjson(finding._asdict())
            else:
                place = finding.path if finding.offset is None else f"{finding.path} at {finding.offset}"
                print_line(printable(f"{finding.severity}: {place}: {finding.problem}"))
    if not in_use:
        refuse_if_in_use(fs, directory, "has come into use meanwhile, so what was found says nothing")
    if options.as_json:
        print_ndjson({"damage": counts["damage"], "notes": counts["note"], "bytes": verification.progress.total})
    else:
        read = f"{verification.progress.total / 1e6:,.1f} MB read"
        print_line(f"{times(counts['damage'], 'damage', 'damages')}, {times(counts['note'], 'note', 'notes')}; {read}")
    if counts["damage"]:
        sys.exit(EXIT_DAMAGE)


def kept_checkpoint(path: str) -> KeptCheckpoint:
    """Return the checkpoint in a file: a note, or what `topics evidence prove` has written. Its signature is not
    checked: the owner of the file knows where it is from."""
    from topics.cli.evidence_files import read_evidence  # noqa: PLC0415
    from topics.evidence.proof_file import note_in  # noqa: PLC0415
    from topics.evidence.signed_note import BadSignedNote  # noqa: PLC0415
    from topics.storage.offline.verify_trees import KeptCheckpoint, is_about_topic  # noqa: PLC0415

    try:
        checkpoint = note_in(read_evidence(path)).checkpoint
    except (BadSignedNote, OSError) as error:
        raise UsageRefusal(f"--against {path}: {error}") from None
    if not is_about_topic(checkpoint):
        raise UsageRefusal(f"--against {path}: its origin, {checkpoint.origin[:200]!r}, is not that of a topic")
    return KeptCheckpoint(path, checkpoint)
