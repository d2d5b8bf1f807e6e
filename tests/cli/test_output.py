"""What is printed, and how it differs between a terminal and a pipe."""

from __future__ import annotations

import sys

import click
import pytest

from tests.cli.terminal import ESCAPES
from topics.cli.output import (
    Column,
    confirm,
    duration,
    moment,
    print_facts,
    print_json,
    print_table,
    printable,
    progress,
    size,
)

COLUMNS = [Column("name"), Column("n", right=True)]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """All three streams are taken for a terminal."""
    monkeypatch.setenv("TERM", "xterm-256color")
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        # Their classes, as the streams of the test are other ones than those of its fixtures.
        monkeypatch.setattr(type(stream), "isatty", lambda _: True)


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.rstrip() for line in ESCAPES.sub("", capsys.readouterr().out).splitlines()]


def test_a_table_on_a_pipe_is_aligned_and_has_its_titles_even_if_it_is_empty(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table(COLUMNS, [])
    assert lines(capsys) == ["name  n"]
    print_table(COLUMNS, [["a", "1,000"], ["longer", "7"]])
    assert lines(capsys) == ["name        n", "a       1,000", "longer      7"]


@pytest.mark.usefixtures("terminal")
def test_a_table_on_a_terminal_folds_what_is_too_wide(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    print_table(COLUMNS, [["x" * 30, "1,000"]])
    found = lines(capsys)
    assert max(map(len, found)) <= 20
    assert "".join(found).count("x") == 30


@pytest.mark.usefixtures("terminal")
def test_nothing_in_a_table_is_taken_for_markup_or_commands(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(COLUMNS, [["[red]x[/red]\x1b[2J", "1"]])
    assert lines(capsys)[1].split() == ["[red]x[/red]\\x1b[2J", "1"]


def test_facts_are_aligned_and_printable(capsys: pytest.CaptureFixture[str]) -> None:
    print_facts([("a", "1"), ("long", "x\ny"), ("c", "")])
    assert lines(capsys) == ["a     1", "long  x\\x0ay", "c"]


def test_a_document_is_one_line_on_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": [1, "ü"]})
    assert capsys.readouterr().out == '{"a":[1,"ü"]}\n'


@pytest.mark.usefixtures("terminal")
def test_a_document_is_indented_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": 1})
    assert capsys.readouterr().out == '{\n  "a": 1\n}\n'


def test_work_is_silent_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("working", total=3) as bar:
        bar.say("still working")
        bar.advance(3)
    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize(
    ("unit", "total", "said"),
    [("records", 4000, "2,000/4,000 records"), ("bytes", 4000, "2.0 kB/4.0 kB"), ("jobs", None, "2,000 jobs")],
)
def test_a_bar_says_how_far_work_has_come_and_is_gone_at_the_end(
    capsys: pytest.CaptureFixture[str], unit: str, total: float | None, said: str
) -> None:
    with progress("working", total=total, unit=unit) as bar:
        bar.say("still\nworking")
        bar.advance(2000)
    drawn = capsys.readouterr()
    assert drawn.out == ""
    assert "still\\x0aworking" in drawn.err
    assert said in ESCAPES.sub("", drawn.err)
    assert drawn.err.endswith("\x1b[2K")


@pytest.mark.usefixtures("terminal")
def test_who_says_no_is_obeyed_and_who_has_said_yes_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def answer(question: str, **_: object) -> bool:
        asked.append(question)
        return len(asked) == 1

    monkeypatch.setattr(click, "confirm", answer)
    confirm("Delete a\x1b?", yes=False)
    with pytest.raises(click.ClickException, match="nothing was done"):
        confirm("Delete b?", yes=False)
    confirm("Delete c?", yes=True)
    assert asked == ["Delete a\\x1b?", "Delete b?"]


def test_where_nobody_can_be_asked_what_was_commanded_is_done() -> None:
    confirm("Delete a?", yes=False)


def test_sizes_are_printed_in_powers_of_1000() -> None:
    assert [size(n) for n in (0, 999, 1000, 1500, 999_949, 999_950, 10**7, 10**18)] == [
        *("0 B", "999 B", "1.0 kB", "1.5 kB", "999.9 kB", "1.0 MB", "10.0 MB", "1,000.0 PB"),
    ]


def test_durations_are_printed_without_loss() -> None:
    assert [duration(ms) for ms in (0, 250, 90_000, 604_800_000, 86_400_001)] == [
        "0ms",
        "250ms",
        "1m30s",
        "7d",
        "1d1ms",
    ]


def test_moments_are_utc_and_never_is_a_dash() -> None:
    assert moment(1_763_726_400_123) == "2025-11-21 12:00:00.123"
    assert (moment(None), moment(0)) == ("-", "-")
    assert moment(2**63) == str(2**63)


def test_nothing_that_a_terminal_would_act_upon_is_left() -> None:
    assert printable("a\x1b[31mb\r\n\x9b\x7f") == "a\\x1b[31mb\\x0d\\x0a\\x9b\\x7f"
    assert printable("\u202eevil\u2066\u2028\udc80") == "\\u202eevil\\u2066\\u2028\\udc80"
    assert printable("zwölf 日本 🎉") == "zwölf 日本 🎉"
