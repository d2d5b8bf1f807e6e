"""`topics bench`: what a running daemon does for a Python client on this machine.

Responsible for options and output; the choice of figures, and how they are measured, is the business of
`topics.cli.figures.measurements`.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import click

from topics.cli.app import CommandOptions, client_options, connect, examples
from topics.cli.failures import CommandFailure, tell
from topics.cli.output import Column, print_json, print_line, print_table, progress
from topics.cli.output import size as human_size
from topics.cli.signal_exceptions import unwinding
from topics.cli.values import Size

if TYPE_CHECKING:
    from topics.cli.figures.measurements import Durability, Figure, Measurements

GIVE_UP_S: Final = 10.0
"""How long a call is repeated that the daemon refuses or that breaks."""

MAX_SECONDS: Final = 60.0
MAX_SIZE: Final = 1_000_000
MAX_CONNECTIONS: Final = 20
"""As many as a client keeps open."""

SHARED: Final = "The daemon and this client share the machine: each has what the other leaves it."


@click.command(
    epilog=examples("topics bench", "topics bench --durability fsync --connections 8", "topics bench --json")
)
@click.option(
    "--durability",
    type=click.Choice(["ephemeral", "memory", "disk", "fsync"]),
    default="disk",
    help="The commit class of the topics.  [disk]",
)
@click.option(
    "--seconds",
    metavar="S",
    type=click.FloatRange(0.1, MAX_SECONDS),
    default=3.0,
    help=f"Length of each of the seven measurements, {MAX_SECONDS:g} at most.  [3]",
)
@click.option(
    "--size", metavar="SIZE", type=Size(), default=100, help="Size of the data of a record, up to 1MB.  [100]"
)
@click.option(
    "--connections",
    metavar="N",
    type=click.IntRange(1, MAX_CONNECTIONS),
    default=4,
    help=f"Number of connections where several are used, {MAX_CONNECTIONS} at most.  [4]",
)
@client_options
@click.pass_obj
def bench(options: CommandOptions, durability: Durability, seconds: float, size: int, connections: int) -> None:
    """Measure a running daemon.

    Appends, reads, claims and acks, and how long it takes from an append to its delivery, on topics named bench-...
    that are made for it and removed at the end, after Ctrl-C or a failure too. Other work of the daemon becomes slower
    meanwhile. The figures are those of a Python client with threads, which often is what holds them down.
    """
    if not 1 <= size <= MAX_SIZE:
        raise click.BadParameter("must be from 1 byte to 1MB", param_hint="--size")
    from topics.cli.figures.measurements import MeasurementFailure as NothingMeasured  # noqa: PLC0415
    from topics.cli.figures.measurements import Measurements, MeasurementSettings  # noqa: PLC0415
    from topics.client import Retry  # noqa: PLC0415

    settings = MeasurementSettings(durability, seconds, size, connections)
    with connect(options) as client:
        version = client.ready() and client.health().version
    with unwinding(), connect(options, retry=Retry(give_up_after=GIVE_UP_S)) as client:
        measurements = Measurements(client, settings)
        try:
            figures = _measured(measurements)
        except NothingMeasured as error:
            raise CommandFailure(str(error)) from None
        finally:
            for name in measurements.left:
                tell(f"the topic {name} could not be removed")
        shared = _is_loopback(client.url)
        document = {"url": client.url, "version": version, "same_machine": shared, "settings": settings}
    if options.as_json:
        print_json(document | {"figures": figures})
        return
    about = f"{connections} connections, {durability}, {human_size(size)} a record, {seconds:g} s each"
    print_line(f"topics {version} at {client.url}: {about}")
    if shared:
        print_line(SHARED)
    print_line("")
    columns = (Column("what"), Column("value", right=True), Column("unit"))
    print_table(columns, [(figure.what, _number(figure.value), figure.unit) for figure in figures])


def _measured(measurements: Measurements) -> list[Figure]:
    figures: list[Figure] = []
    with progress("bench", total=len(measurements.all), unit="measurements") as bar, measurements.topics():
        for what, measure in measurements.all:
            bar.say(what)
            figures += measure()
            bar.advance()
    return figures


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
