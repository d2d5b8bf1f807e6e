"""The table of broken builds fits the code, and `scripts/mutate` says of them what is true."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "scripts"))

from mutating.__main__ import main  # noqa: E402
from mutating.copies import Copy, copies  # noqa: E402
from mutating.mutation import SUBSYSTEMS, Mutation  # noqa: E402
from mutating.proof import STAGES, TARGETS, Stage  # noqa: E402
from mutating.table import MUTATIONS  # noqa: E402
from mutating.trial import Trial, attempt, look_at  # noqa: E402

BY_NAME = {mutation.name: mutation for mutation in MUTATIONS}
HARMLESS = BY_NAME["one-record-above-the-cap"]
FAILED = r"^noticed by (.*)$"


@pytest.mark.parametrize("mutation", MUTATIONS, ids=BY_NAME)
def test_it_fits_the_code_and_changes_one_line_of_it(mutation: Mutation) -> None:
    whole = (REPOSITORY / mutation.file).read_text()
    broken = mutation.applied(whole)
    assert broken != whole
    assert mutation.lines_changed == 1
    compile(broken, mutation.file, "exec")


def test_names_are_unique() -> None:
    assert len(BY_NAME) == len(MUTATIONS) >= 30


def test_every_subsystem_is_broken_somewhere() -> None:
    assert {mutation.subsystem for mutation in MUTATIONS} == set(SUBSYSTEMS)


def test_every_file_that_is_broken_has_tests_of_its_own_and_they_are_there() -> None:
    assert {mutation.file for mutation in MUTATIONS} == TARGETS.keys()
    missing = {name for names in TARGETS.values() for name in names if not (REPOSITORY / "tests" / name).is_file()}
    assert not missing


KINDS = ("8.", "rule", "semantics ", "api ", "speed ", "consumers ", "evidence ", "bucket ")


def test_every_mutation_says_which_promise_it_breaks() -> None:
    for mutation in MUTATIONS:
        assert mutation.breaks.startswith(KINDS), mutation.name


@pytest.mark.parametrize(("text", "times"), [("    a()\n", 0), ("    a()\n    b()\n\nif c:\n    a()\n    b()\n", 2)])
def test_old_lines_that_are_not_there_exactly_once_are_refused(text: str, times: int) -> None:
    mutation = replace(HARMLESS, old="a()\nb()", new="a()\npass")
    with pytest.raises(ValueError, match=f"occur {times} times"):
        mutation.applied(text)


def test_a_line_that_moves_counts_as_one_and_keeps_its_indentation() -> None:
    mutation = replace(HARMLESS, old="    with a:\n        b()\n    c()", new="    c()\n    with a:\n        b()")
    assert mutation.applied("if d:\n    with a:\n        b()\n    c()\ne()\n") == (
        "if d:\n    c()\n    with a:\n        b()\ne()\n"
    )
    assert mutation.lines_changed == 1


# -- trials, with a proof that is made up ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def copy() -> Iterator[Copy]:
    with copies(1) as made:
        yield made[0]


def stage(code: str, timeout_s: float = 60, name: str = "stage") -> Stage:
    return Stage(name, lambda mutation: [sys.executable, "-c", code], timeout_s, FAILED)


def tried(copy: Copy, mutation: Mutation, *stages: Stage, all_stages: bool = False) -> Trial:
    return trio.run(partial(attempt, copy, mutation, stages, all_stages=all_stages))


PASSES = stage("")
NOTICES = stage("print('noticed by a test'); raise SystemExit(1)")


@pytest.mark.slow
def test_a_mutation_that_nothing_notices_has_survived(copy: Copy) -> None:
    trial = tried(copy, HARMLESS, PASSES, PASSES)
    assert trial.verdict == "SURVIVED"
    assert [look.verdict for look in trial.looks] == ["passed", "passed"]


@pytest.mark.slow
def test_the_first_stage_that_notices_is_the_last_one(copy: Copy) -> None:
    trial = tried(copy, HARMLESS, PASSES, NOTICES, PASSES)
    assert trial.verdict == "caught"
    assert [(look.verdict, look.what) for look in trial.looks] == [("passed", ""), ("caught", "a test")]


@pytest.mark.slow
def test_all_stages_are_asked_if_that_is_wanted(copy: Copy) -> None:
    trial = tried(copy, HARMLESS, NOTICES, PASSES, NOTICES, all_stages=True)
    assert [look.verdict for look in trial.looks] == ["caught", "passed", "caught"]


@pytest.mark.slow
def test_what_does_not_end_is_caught_and_is_ended_with_all_that_it_has_started(copy: Copy, tmp_path: Path) -> None:
    beat = tmp_path / "beat"
    child = f"import time\nwhile True: open({str(beat)!r}, 'a').write('.'); time.sleep(0.01)"
    code = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}])"
    trial = tried(copy, HARMLESS, stage(code, timeout_s=2))
    assert [look.verdict for look in trial.looks] == ["hang"]
    assert trial.verdict == "caught"
    beats = beat.stat().st_size
    assert beats
    trio.run(trio.sleep, 0.1)
    assert beat.stat().st_size == beats


@pytest.mark.slow
def test_a_test_that_does_not_end_is_a_hang(copy: Copy) -> None:
    code = (
        "print('..Timeout (0:00:40)!'); print('  File \"/x/tests/a/test_b.py\", line 7 in test_c'); raise SystemExit(1)"
    )
    trial = tried(copy, HARMLESS, stage(code))
    assert [(look.verdict, look.what) for look in trial.looks] == [("hang", "tests/a/test_b.py")]


@pytest.mark.slow
def test_what_a_signal_ends_is_caught(copy: Copy) -> None:
    trial = tried(copy, HARMLESS, stage("import os\nos.kill(os.getpid(), 11)"))
    assert [look.verdict for look in trial.looks] == ["killed"]
    assert trial.verdict == "caught"


@pytest.mark.slow
@pytest.mark.parametrize("code", ["raise SystemExit(2)", "raise SystemExit(1)"])
def test_a_stage_that_fails_without_saying_what_is_an_error_and_no_catch(copy: Copy, code: str) -> None:
    trial = tried(copy, HARMLESS, stage(code), NOTICES)
    assert trial.verdict == "error"
    assert len(trial.looks) == 1


@pytest.mark.slow
def test_a_build_that_cannot_be_imported_is_an_error_of_the_table(copy: Copy) -> None:
    mutation = replace(HARMLESS, old="_FIRST_STRIDE: Final = 32", new="_FIRST_STRIDE: Final = NoSuchThing")
    trial = tried(copy, mutation, NOTICES)
    assert trial.verdict == "error"
    assert trial.error is not None
    assert "NoSuchThing" in trial.error


@pytest.mark.slow
def test_the_broken_file_is_what_is_run_and_whole_again_behind_it(copy: Copy) -> None:
    code = (
        f"import pathlib, topics\ntext = (pathlib.Path(topics.__file__).parents[1] / {HARMLESS.file!r}).read_text()\n"
    )
    asked = stage(code + "if 'cap_records - 1) > 0' in text: print('noticed by its text'); raise SystemExit(1)")
    assert tried(copy, HARMLESS, asked).verdict == "caught"
    assert trio.run(look_at, copy, None, asked).verdict == "passed"
    assert (copy.root / HARMLESS.file).read_text() == (REPOSITORY / HARMLESS.file).read_text()


def test_the_copies_are_gone_in_the_end() -> None:
    with copies(2) as made:
        roots = [one.root for one in made]
        assert all((root / "topics" / "daemon.py").is_file() for root in roots)
        assert not any((root / ".venv").exists() for root in roots)
    assert not any(root.parent.parent.exists() for root in roots)


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_list_names_every_mutation() -> None:
    listed = CliRunner().invoke(main, ["--list"])
    assert listed.exit_code == 0
    assert [line.split()[1] for line in listed.output.splitlines()[:-1]] == list(BY_NAME)


def test_a_mutation_or_a_stage_that_is_not_there_is_refused() -> None:
    assert CliRunner().invoke(main, ["no-such-mutation"]).exit_code == 2
    assert CliRunner().invoke(main, ["--stage", "no such stage"]).exit_code == 2


def test_the_cheapest_stage_comes_first() -> None:
    assert STAGES[0].name == "targeted"
    assert STAGES[-1].name == "rest"


@pytest.mark.slow
def test_a_real_mutation_is_caught_by_a_real_test(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    words = [HARMLESS.name, "--stage", "targeted", "--no-control", "--jobs", "1", "--json", str(found)]
    called = CliRunner().invoke(main, words)
    assert called.exit_code == 0, called.output
    report = json.loads(found.read_text())
    assert report["passed"]
    (one,) = report["mutations"]
    assert (one["name"], one["verdict"]) == (HARMLESS.name, "caught")
    (look,) = one["stages"]
    assert look["verdict"] == "caught"
    assert "tests/log/test_retention.py::" in look["what"]
