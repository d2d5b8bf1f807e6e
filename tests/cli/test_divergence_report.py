"""`topics inspect --diverged`: what an operator sees of a directory that was set aside."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.bucket.test_diverged import ASIDE, aside
from tests.simulation.world import ROOT
from topics.bucket.standby.diverged_note import NAME
from topics.cli.app import run
from topics.cli.records.record_input import LineSplitter, Parser

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with one in it that was set aside."""
    for name, content in aside().tree().items():
        if name == ASIDE or name.startswith(f"{ASIDE}/"):
            path = tmp_path / name.removeprefix("/")
            if content is None:
                path.mkdir(parents=True)
            else:
                path.write_bytes(content)
    return tmp_path / ROOT.removeprefix("/")


@pytest.fixture
def left(data: Path) -> Path:
    return data / "diverged-1"


@pytest.fixture
def inspect(capfdbinary: pytest.CaptureFixture[bytes]) -> Command:
    def call(*arguments: object) -> tuple[int, str, str]:
        capfdbinary.readouterr()
        code = run(["inspect", "--diverged", *map(str, arguments)])
        out, err = capfdbinary.readouterr()
        return code, out.decode(), err.decode()

    return call


def test_the_report_is_a_page_for_people(inspect: Command, left: Path) -> None:
    before = {path: path.read_bytes() for path in left.rglob("*") if path.is_file()}
    code, page, err = inspect(left)
    assert (code, err) == (0, "")
    assert "in epoch 1" in page
    assert "not carried over: 9 records of 3 topics" in page
    assert "5 records" in page
    assert "seqs 11 to 15" in page
    assert "5 of them synced for certain, 1 gone again" in page
    assert "2 jobs acked or moved" in page
    assert f"topics inspect --diverged {left} --records" in page
    assert {path: path.read_bytes() for path in left.rglob("*") if path.is_file()} == before


def test_the_report_is_json_for_programs(inspect: Command, left: Path) -> None:
    code, out, _ = inspect(left, "--json")
    found = json.loads(out)
    assert (code, found["exact"], found["findings"], found["refused"]) == (0, True, [], None)
    assert {topic["name"]: topic["records"] for topic in found["topics"]}["log"] == 5
    one = json.loads(inspect(left, "--json", "--topic", "new")[1])["topics"]
    assert [(topic["name"], topic["records"], topic["durability"]) for topic in one] == [("new", 1, "disk")]


def test_the_records_can_be_appended_again(inspect: Command, left: Path) -> None:
    code, out, err = inspect(left, "--records", "--topic", "log")
    assert (code, err) == (0, "")
    lines = [json.loads(line) for line in out.splitlines()]
    assert [(line["topic"], line["$seq"], line["data"]) for line in lines] == [
        ("log", 12, "b"),
        ("log", 13, "c"),
        ("log", 14, "staged before"),
        ("log", 15, "staged behind"),
    ]
    everything = inspect(left, "--records")[1]
    parsed = [one.record for one in Parser(form="records").parse(LineSplitter().feed(everything.encode()))]
    assert len(parsed) == 7
    assert sorted(one.not_before or 0 for one in parsed)[-1] > 0
    assert len(inspect(left, "--records", "--limit", "2")[1].splitlines()) == 2


def test_a_directory_that_was_not_set_aside_is_refused(inspect: Command, data: Path, left: Path) -> None:
    code, out, err = inspect(data)
    assert (code, out) == (2, "")
    assert f"it has no file DIVERGED; these in it were: {left}" in err
    (left / NAME).unlink()
    assert inspect(left)[0] == 2
    assert inspect(data / "nowhere")[0] == 2


@pytest.mark.parametrize("options", [("--frames",), ()])
def test_options_that_do_not_fit_are_refused(inspect: Command, left: Path, options: tuple[str, ...]) -> None:
    if options:
        assert inspect(left, *options)[0] == 2
    assert run(["inspect", str(left), "--records"]) == 2


def test_a_truncated_note_is_told_and_the_directory_says_where_it_was(inspect: Command, left: Path) -> None:
    """The place in `meta/bucket` may be older, so that records are listed that the bucket has."""
    whole = (left / NAME).read_bytes()
    (left / NAME).write_bytes(whole[:40])
    code, page, _ = inspect(left)
    assert code == 0
    assert "DIVERGED cannot be read" in page
    assert "or a later one" in page
    code, records, err = inspect(left, "--records")
    assert code == 0
    assert "DIVERGED cannot be read" in err
    assert len(records.splitlines()) >= 7
    (left / "meta" / "bucket").write_bytes(b"")
    assert inspect(left)[0] == 2
    (left / "meta" / "bucket").unlink()
    assert inspect(left)[0] == 2


def test_if_the_place_is_not_known_the_page_says_so(inspect: Command, left: Path) -> None:
    note: dict[str, Any] = json.loads((left / NAME).read_text())
    (left / NAME).write_text(json.dumps({**note, "positions": None, "exact": False}))
    code, page, _ = inspect(left)
    assert code == 0
    assert "how far the bucket has its log is not known" in page


def test_damage_is_told_and_ends_nothing(inspect: Command, left: Path) -> None:
    found = json.loads(inspect(left, "--json")[1])
    shard = max(found["shards"], key=lambda one: one["bytes"])
    ordinal, offset = shard["begin"]
    path = left / "wal" / f"shard-{shard['shard']:02d}" / f"wal-{ordinal:020d}.log"
    content = bytearray(path.read_bytes())
    content[offset + 60] ^= 1
    path.write_bytes(content)
    code, page, _ = inspect(left)
    assert code == 1
    assert f"damage: {path} at {offset}" in page
    code, out, err = inspect(left, "--records")
    assert code == 1
    assert f"damage: {path} at {offset}" in err
    assert out
    path.write_bytes(b"")
    assert inspect(left)[0] == 1
    (left / "FORMAT").unlink()
    assert inspect(left)[0] == 2
