"""`topics completion bash|zsh|fish`: what a shell needs to complete commands, options and names."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import ShellComplete, get_completion_class

from topics.cli.app import COMPLETE_VARIABLE, PROGRAM, cli, examples

SHELLS: Final = ("bash", "zsh", "fish")


@click.command(
    epilog=examples(
        "topics completion bash > ~/.local/share/bash-completion/completions/topics",
        'eval "$(topics completion zsh)"',
        "topics completion fish > ~/.config/fish/completions/topics.fish",
    )
)
@click.argument("shell", metavar="SHELL", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script by which a shell completes command lines.

    SHELL is bash, zsh or fish. Completed are commands, options, and names of topics and routers. For names it asks the
    daemon that TOPICS_URL and TOPICS_TOKEN or the options on the line say; if that does not answer within half a
    second, nothing is offered.
    """
    found = get_completion_class(shell)
    assert found is not None
    # Not the method of the class for bash, which first runs a bash to look at its version.
    click.echo(ShellComplete.source(found(cli, {}, PROGRAM, COMPLETE_VARIABLE)))
