"""The page that documents the commands."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.cli.canned import InProcess
from tests.cli.test_app import leaves
from topics.cli.app import cli
from topics.cli.guide import page

GUIDE = Path(__file__).parents[2] / "docs" / "commands.md"


def test_the_page_in_the_docs_is_current() -> None:
    assert GUIDE.read_text() == page(), "run: python -m topics guide > docs/commands.md"


def test_the_page_is_what_the_hidden_command_prints(here: InProcess) -> None:
    assert here("guide") == (0, page(), "")
    assert "guide" not in here("--help").out.partition("Commands:")[2].partition("Settings:")[0]


def test_links_in_the_page_lead_somewhere() -> None:
    text = page()
    titles = [line.strip("# ").lower() for line in text.splitlines() if line.startswith("#")]
    for target in re.findall(r"\]\(([^)]*)\)", text):
        if target.startswith("#"):
            assert target[1:].replace("-", " ") in titles, target
        else:
            assert (GUIDE.parent / target).exists(), target


def test_every_command_and_every_option_is_in_the_page() -> None:
    text = page()
    for name, command in leaves(cli, click.Context(cli, info_name="topics")):
        if command.hidden:
            continue
        section = text.partition(f"# topics {name}\n")[2].partition("\n#")[0]
        shared = {param.name for param in cli.params}
        own = [param for param in command.params if isinstance(param, click.Option) and param.name not in shared]
        assert section, name
        assert name == "serve" or all(option in section for param in own for option in param.opts), name


def examples() -> Iterator[list[str]]:
    """The words behind `topics` wherever it is called in an example; the line below a title says what may be given."""
    text = re.sub(r"^(#+ topics .*\n\n)    topics .*\n", r"\1", page(), flags=re.MULTILINE)
    for line in text.splitlines():
        if not line.startswith("    "):
            continue
        words = shlex.split(line, comments=True)
        calls = [list(call) for is_pipe, call in itertools.groupby(words, "|".__eq__) if not is_pipe]
        for program, *arguments in calls:
            if program == "topics":
                yield list(itertools.takewhile(lambda word: word not in ("<", ">"), arguments))


def test_every_example_is_a_command_line_that_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(click.Command, "invoke", lambda *_: None)
    # Whether a directory is there is not what is asked.
    monkeypatch.setattr(click.Path, "convert", lambda _self, value, *_: value)
    found = list(examples())
    assert len(found) > 40
    for words in found:
        cli.invoke(cli.make_context("topics", list(words)))
