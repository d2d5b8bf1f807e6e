"""`topics restore` and `topics bucket status|ls|verify|gc`: what can be done with a bucket without a daemon
(`docs/spec/bucket.md` section 5).

Responsible for options, progress and output; `topics.bucket` does the work. A bucket is only read.

Exit codes: 0; 1 for an object that is missing or wrong, and if `verify` has found one; 2 for a command line or a target
that cannot be; 3 without the bucket; 4 without the right to read it; 6 if the store does not answer.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from topics.cli.app import CommandOptions, examples, json_option
from topics.cli.failures import (
    EXIT_FAILED,
    EXIT_NOT_ALLOWED,
    EXIT_NOT_FOUND,
    EXIT_UNAVAILABLE,
    CommandFailure,
    UsageRefusal,
)
from topics.cli.offline.directory_look import quiet, shown_progress, times
from topics.cli.output import (
    Column,
    duration,
    moment,
    print_facts,
    print_json,
    print_line,
    print_ndjson,
    print_table,
    printable,
    size,
)
from topics.cli.values import Duration, Time

if TYPE_CHECKING:
    from topics.bucket.bucket_location import BucketLocation
    from topics.bucket.object_store import ObjectStore
    from topics.bucket.offline.bucket_figures import BucketStatus, SeenStandby
    from topics.bucket.offline.bucket_reader import BucketDamaged, BucketReader
    from topics.bucket.offline.bucket_removals import BucketRemovals
    from topics.bucket.offline.bucket_restore import RestoreFigures
    from topics.bucket.offline.restore_target import RestoreTarget
    from topics.bucket.restored.topic_selection import TopicSelection

SILENT_MS: Final = 120_000
"""A standby that has told nothing of itself for so long is gone, or cannot reach the bucket (ms)."""

RETAIN_MS: Final = 7 * 86_400_000
"""The retention of a daemon by default (ms)."""

TIMEOUT_S: Final = 60.0
"""How long the store may give no sign of life (s)."""

url_argument: Final = click.argument("url", metavar="URL")


@click.command(
    epilog=examples(
        "topics restore s3://archive/main --data-dir /var/lib/topics",
        "topics restore s3://archive/main --data-dir /tmp/before --to 2026-11-24T09:59:00Z",
        "topics restore s3://archive/main --data-dir /tmp/orders --topic orders --topic 'invoices-*'",
    )
)
@url_argument
@click.option(
    "--data-dir",
    required=True,
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="The directory to make. It must not exist, or be empty.",
)
@click.option("--to", "to_ms", type=Time(), metavar="TIME", help="The state as of this time, or just before.")
@click.option("--round", "number", type=click.IntRange(min=1), metavar="N", help="The state as of the end of round N.")
@click.option(
    "--topic",
    "patterns",
    multiple=True,
    metavar="GLOB",
    help="Only topics whose names match this, or another --topic. Repeatable.",
)
@click.option("--full", is_flag=True, help="Copy all segments into the directory now.")
@json_option
@click.pass_obj
def restore(
    options: CommandOptions,
    url: str,
    data_dir: str,
    to_ms: int | None,
    number: int | None,
    patterns: tuple[str, ...],
    full: bool,
) -> None:
    """Make a data directory from a bucket: the newest state that it has, or that of a time or a round.

    Sealed segments stay in the bucket. The daemon reads them there, with the same variables of the provider, and copies
    them into the directory in the background; until then an object `pins/...` in the bucket keeps them. With --full
    they are copied now, and the bucket is only read.

    The directory gets its name when it is complete; until then it is DIR.partial. If a disk is mounted at DIR, it is
    filled where it is, and FORMAT is written last: no daemon starts on it before. The first start on it raises the
    heads of all topics, because the seqs behind them may have been given out.

    With --topic the first start deletes all topics that do not match, before it serves anybody, and the schedules that
    append to them. In GLOB `*` stands for any characters, `?` for one, `[abc]` for one of these. With --full, too, the
    segments of the other topics stay in the bucket.
    """
    from topics.bucket.offline.bucket_reader import BucketReader  # noqa: PLC0415
    from topics.bucket.offline.bucket_restore import (  # noqa: PLC0415
        WORKERS,
        BucketRestore,
        RestoreSource,
        Workers,
    )
    from topics.bucket.offline.restore_target import RestoreRefused, choose_target, with_whole_base  # noqa: PLC0415
    from topics.bucket.pins import drop_pin, pinned  # noqa: PLC0415
    from topics.storage.files.fs import OsFs  # noqa: PLC0415

    if to_ms is not None and number is not None:
        raise UsageRefusal("--to and --round cannot be given together")
    selection = _selection(patterns)
    with _failures():
        location, objects = _opened(url)
        reader = BucketReader(objects)
        root = os.path.realpath(data_dir)

        def work_of(workers: Workers) -> BucketRestore:
            return BucketRestore(OsFs(), reader, root, workers, selection=selection, in_place=os.path.ismount(root))

        def choose(damaged: Mapping[int, BucketDamaged]) -> RestoreTarget:
            with closing(Workers(WORKERS)) as workers:
                work_of(workers).check_place()
                return choose_target(reader, number=number, to_ms=to_ms, map_heads=workers.map, damaged=damaged)

        def make(target: RestoreTarget) -> RestoreFigures:
            with closing(Workers(WORKERS)) as workers, ExitStack() as stack:
                work = work_of(workers)
                if not full or selection is not None:
                    pin = stack.enter_context(pinned(objects, target.base, int(time.time() * 1000)))
                    stays = partial(_stays, selection if full else None)
                    work.source = RestoreSource(str(location), pin, stays)
                with shown_progress(work.progress, "restore"):
                    figures = work.run(target)
                if work.source is not None and not figures.left:
                    drop_pin(objects, work.source.pin)
            return figures

        try:
            with quiet():  # a base that was passed over is in the target
                figures = with_whole_base(choose, make)
        except RestoreRefused as error:
            raise UsageRefusal(str(error)) from None
        except OSError as error:
            raise CommandFailure(
                f"{data_dir} cannot be made: {error.strerror or error}; nothing is left of it"
            ) from None
    _print_restored(data_dir, figures.target, figures, as_json=options.as_json, has_selection=selection is not None)


def _print_restored(
    data_dir: str, target: RestoreTarget, figures: RestoreFigures, *, as_json: bool, has_selection: bool
) -> None:
    """Print what a restore has made."""
    if as_json:
        found = {
            "data_dir": data_dir,
            "round": target.round,
            "base": target.base,
            "time": target.wall_ms,
            "bytes": figures.bytes,
            "segments_left": figures.left,
        }
        print_json({**found, "passed_over": target.passed_over} if target.passed_over else found)
        return
    if target.passed_over:
        print_line(printable(f"from an older base, which gives the same state: {target.passed_over}"))
    print_line(
        printable(
            f"{data_dir}: the state of {moment(target.wall_ms)} UTC (round {target.round}), {size(figures.bytes)} read"
        )
    )
    if has_selection:
        print_line("it has all topics until a daemon is started: that deletes those that do not match")
    if figures.left:
        print_line(f"{figures.left:,} segments are still in the bucket: a daemon that is started copies them")


@click.group(
    epilog=examples("topics bucket status s3://archive/main", "topics bucket verify s3://archive/main --quick")
)
@json_option
def bucket() -> None:
    """The bucket that a daemon archives to. It is only read."""


@bucket.command(epilog=examples("topics bucket status s3://archive/main"))
@url_argument
@json_option
@click.pass_obj
def status(options: CommandOptions, url: str) -> None:
    """Show who writes to a bucket, who follows and how far, its last round, its newest base, and how much is in it.
    Exit code 1 if an object that says so is missing or damaged."""
    from topics.bucket.offline.bucket_figures import status_of  # noqa: PLC0415

    with _failures():
        found = status_of(_reader(url))
    if options.as_json:
        print_json(found)
    else:
        print_facts(_status_facts(found))
    if found.problems:
        sys.exit(EXIT_FAILED)


@bucket.command(epilog=examples("topics bucket ls s3://archive/main", "topics bucket ls s3://archive/main --limit 20"))
@url_argument
@click.option("--limit", type=click.IntRange(min=1), default=100, metavar="N", help="At most N of them.  [100]")
@json_option
@click.pass_obj
def ls(options: CommandOptions, url: str, limit: int) -> None:
    """List bases and rounds, newest first. Times are UTC."""
    from topics.bucket.offline.bucket_figures import listing_of  # noqa: PLC0415

    with _failures():
        found = listing_of(_reader(url), limit)
    if options.as_json:
        print_json({"objects": found})
        return
    columns = [
        Column("kind"),
        Column("number", right=True),
        Column("time"),
        Column("size", right=True),
        Column("about"),
    ]
    print_table(
        columns, ([one.kind, str(one.number), moment(one.wall_ms), size(one.bytes), one.about] for one in found)
    )


@bucket.command(
    epilog=examples("topics bucket verify s3://archive/main", "topics bucket verify s3://archive/main --quick")
)
@url_argument
@click.option("--quick", is_flag=True, help="Do not read segments; only look whether they exist and how long they are.")
@json_option
@click.pass_obj
def verify(options: CommandOptions, url: str, quick: bool) -> None:
    """Look for damage in a bucket: every hash, the chain of rounds, and whether each base is complete. Exit code 1 if
    there is any."""
    from topics.bucket.offline.bucket_check import BucketCheck  # noqa: PLC0415
    from topics.bucket.offline.bucket_restore import WORKERS, Workers  # noqa: PLC0415

    workers = Workers(WORKERS)
    count = 0
    with _failures():
        check = BucketCheck(_reader(url), workers, quick=quick)
        try:
            with shown_progress(check.progress, "verify"):
                for finding in check.findings():
                    count += 1
                    if options.as_json:
                        print_ndjson(finding._asdict())
                    else:
                        print_line(printable(f"{finding.name}: {finding.problem}"))
        finally:
            workers.close()
    if options.as_json:
        print_ndjson({"damage": count, "objects": check.objects, "bytes": check.progress.done})
    else:
        found = times(count, "damage", "damages")
        print_line(f"{found}; {check.objects:,} objects, {size(check.progress.done)} read")
    if count:
        sys.exit(EXIT_FAILED)


@bucket.command(epilog=examples("topics bucket gc s3://archive/main", "topics bucket gc s3://archive/main --retain 1d"))
@url_argument
@click.option(
    "--retain",
    "retain_ms",
    type=Duration(),
    default=RETAIN_MS,
    metavar="TIME",
    help="TOPICS_BUCKET_RETAIN_MS of the daemon.  [7d]",
)
@click.option("--limit", type=click.IntRange(min=0), default=20, metavar="N", help="Names of each kind.  [20]")
@click.option("--dry-run", is_flag=True, help="Delete nothing. This is always so.")
@json_option
@click.pass_obj
def gc(options: CommandOptions, url: str, retain_ms: int, limit: int, dry_run: bool) -> None:
    """Show what may go from a bucket, and why the rest stays. Nothing is deleted: the daemon that owns the bucket does
    that, an hour after it has found that nobody needs an object."""
    from topics.bucket.offline.bucket_removals import RemovalSearch  # noqa: PLC0415

    with _failures():
        now_ms = int(time.time() * 1000)
        found = RemovalSearch(_reader(url), retain_ms=retain_ms, now_ms=now_ms, limit=limit).find()
    if options.as_json:
        print_json(found)
        return
    for line in _removal_lines(found):
        print_line(printable(line))


# ----------------------------------------------------------------- the bucket


def _selection(patterns: Sequence[str]) -> TopicSelection | None:
    """Return the topics that are wanted; None for all. Exits for a pattern that cannot be used."""
    from topics.bucket.restored.topic_selection import BadSelection, TopicSelection  # noqa: PLC0415

    if not patterns:
        return None
    try:
        return TopicSelection(patterns)
    except BadSelection as error:
        raise UsageRefusal(f"--topic: {error}") from None


def _stays(brought: TopicSelection | None, name: str) -> bool:
    """Return True if the segments of a topic stay in the bucket, and `brought` does not name it."""
    return brought is None or not brought.matches(name)


def _reader(url: str) -> BucketReader:
    """Return a reader of the bucket at a URL. Exits if the URL, or a variable of the provider, cannot be used."""
    from topics.bucket.offline.bucket_reader import BucketReader  # noqa: PLC0415

    return BucketReader(_opened(url)[1])


def _opened(url: str) -> tuple[BucketLocation, ObjectStore]:
    """The bucket at a URL. Exits like `_reader`."""
    from topics.bucket.bucket_location import BucketLocationError, open_objects, parse_location  # noqa: PLC0415

    try:
        location = parse_location(url, os.environ, "URL")
    except BucketLocationError as error:
        raise UsageRefusal(str(error)) from None
    return location, open_objects(location, TIMEOUT_S)


@contextmanager
def _failures() -> Iterator[None]:
    """Turn the errors of a bucket into those of a command."""
    from topics.bucket.object_store import StoreError, StoreErrorKind  # noqa: PLC0415
    from topics.bucket.offline.bucket_reader import BucketDamaged  # noqa: PLC0415

    try:
        yield
    except BucketDamaged as error:
        raise CommandFailure(str(error)) from None
    except StoreError as error:
        codes = {StoreErrorKind.DENIED: EXIT_NOT_ALLOWED, StoreErrorKind.NO_BUCKET: EXIT_NOT_FOUND}
        code = EXIT_UNAVAILABLE if error.is_transient else codes.get(error.kind, EXIT_FAILED)
        raise CommandFailure(error.sentence, code) from None


def _status_facts(found: BucketStatus) -> Iterator[tuple[str, str]]:
    from topics.bucket.object_names import OWNER  # noqa: PLC0415

    yield "bucket", found.id
    if found.owner is None:
        yield "owner", "not known" if any(one.startswith(OWNER) for one in found.problems) else "nobody yet"
    else:
        owner = found.owner
        where = f" at {owner.url}" if owner.url else ""
        yield "owner", f"{owner.node}{where}, directory {owner.dir}, {owner.state}"
        if owner.lease_ms:
            yield "lease", f"{duration(owner.lease_ms)}, renewed {owner.renewals:,} times"
        yield "epoch", str(owner.epoch)
    for standby in found.standbys:
        yield "standby", _standby_facts(standby)
    yield "last round", _at(found.last_round, found.last_round_ms)
    yield "newest base", _at(found.newest_base, found.newest_base_ms)
    if found.rounds_since_base is not None and found.base_lag_ms is not None:
        lag = _about(found.base_lag_ms)
        yield "since that base", f"{found.rounds_since_base:,} rounds, {lag}"
    for problem in found.problems:
        yield "damaged", problem
    for pin in found.pins:
        yield "pin", f"{pin.name}, base {pin.base}, until {moment(pin.expires_ms)}"
    for kind in found.kinds:
        yield kind.kind, f"{kind.objects:,} objects, {size(kind.bytes)}"


def _standby_facts(standby: SeenStandby) -> str:
    """One line about a standby. It tells of itself every 30 s, so it may have followed further since."""
    where = f" at {standby.url}" if standby.url else ""
    ago = _about(standby.told_ago_ms)
    line = f"{standby.node}{where}, directory {standby.dir}, {standby.state}, round {standby.round}, lag "
    line += f"{standby.lag_ms:,} ms, told {ago} ago"
    return line + (" (silent)" if standby.told_ago_ms > SILENT_MS else "")


def _removal_lines(found: BucketRemovals) -> Iterator[str]:
    for figures in found.kinds:
        line = f"{figures.kind}: {figures.may_go:,} may go ({size(figures.may_go_bytes)}), "
        line += f"{figures.kept:,} stay ({size(figures.kept_bytes)})"
        if figures.undecided:
            line += f", {figures.undecided:,} may belong to the next base"
        yield line
    if found.reason:
        yield found.reason
    for base in found.bases:
        yield f"base {base.base}, {moment(base.wall_ms)}, needs rounds from {base.first_round} on: {base.why}"
    if found.rounds_from is not None:
        yield f"rounds from {found.rounds_from} on stay, and {found.epoch_beginnings:,} that begin an epoch"
    for name in found.names:
        yield f"may go: {name}"
    yield "nothing was deleted: the daemon that owns the bucket does that"


def _at(number: int | None, wall_ms: int | None) -> str:
    if number is None:
        return "none"
    if wall_ms is None:
        return f"{number}, of an unknown time"
    age = max(int(time.time() * 1000) - wall_ms, 0)
    return f"{number}, {moment(wall_ms)}, {_about(age)} ago"


def _about(ms: int) -> str:
    """A duration in whole seconds; below one, in milliseconds."""
    return duration(ms if ms < 1000 else ms // 1000 * 1000)
