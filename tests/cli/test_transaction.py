"""`topics transaction`: lines or a body, keys, conditions, what is printed, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command_line import fields
from tests.cli.here import Here
from tests.conformance.client import Client, Daemon, data_of, fresh_name

pytestmark = pytest.mark.slow


@pytest.fixture
def here(daemon: Daemon, capsysbinary: pytest.CaptureFixture[bytes]) -> Here:
    return Here(daemon.url, capsysbinary)


def body(*appends: dict[str, Any], **more: Any) -> str:
    return json.dumps({"appends": list(appends)} | more)


def one(topic: str, *values: Any, **more: Any) -> dict[str, Any]:
    return {"topic": topic, "records": [{"data": value} for value in values]} | more


def test_lines_are_text_and_the_seqs_are_printed_for_each_topic(here: Here, client: Client) -> None:
    a, b = fresh_name(), fresh_name()
    done = here("transaction", input=f"{b} one\n{a} two words\r\n\n{b}  1\n{a} ")
    assert (done.returncode, done.stderr) == (0, "")
    assert fields(done.stdout) == [
        ["topic", "records", "first", "seq", "last", "seq"],
        [b, "2", "1", "2"],
        [a, "2", "1", "2"],
    ]
    assert data_of(client.read(a)) == ["two words", ""]
    assert data_of(client.read(b)) == ["one", " 1"]


def test_lines_of_json_and_of_whole_records(here: Here, client: Client) -> None:
    a, b = fresh_name(), fresh_name()
    assert here("transaction", "--ndjson", input=f'{a} {{"id": 1.50}}\n{b} null\n').returncode == 0
    assert here("transaction", "--records", input=f'{a} {{"data": 2, "tag": "t"}}\n{b} {{"data": 3}}\n').returncode == 0
    assert data_of(client.read(a)) == [{"id": 1.5}, 2]
    assert [record.get("$tag") for record in client.read(a, include_tags=True)["records"]] == [None, "t"]
    assert data_of(client.read(b)) == [None, 3]


def test_a_file_with_the_body_of_the_call(here: Here, client: Client, tmp_path: Path) -> None:
    a, b = fresh_name(), fresh_name()
    file = tmp_path / "body.json"
    file.write_text("\n " + body(one(a, 1, expected_head_seq=0), one(b, 2, 3), idempotency_key="k") + "\n")
    first = here.json("transaction", str(file))
    assert [(done["topic"], done["seqs"]) for done in first["appends"]] == [(a, [1]), (b, [1, 2])]
    assert first["deduped"] is False
    again = here("transaction", str(file))
    assert (again.returncode, "nothing was appended" in again.stderr) == (0, True)
    assert data_of(client.read(b)) == [2, 3]


@pytest.mark.parametrize("form", ["lines", "body"])
def test_a_repeat_under_a_key_appends_nothing(here: Here, client: Client, form: str) -> None:
    a, b = fresh_name(), fresh_name()
    given = f"{a} x\n{b} y\n" if form == "lines" else body(one(a, "x"), one(b, "y")) + " \n"
    assert here.json("transaction", "--key", 'k"1', input=given)["deduped"] is False
    assert here.json("transaction", "--key", 'k"1', input=given)["deduped"] is True
    other = here("transaction", "--key", 'k"1', input=f"{a} x\n{a} x\n{b} y\n")
    assert (other.returncode, "the key was used" in other.stderr) == (5, True)
    assert data_of(client.read(a)) == ["x"]
    # Without a key each is a transaction of its own.
    assert here("transaction", input=given).returncode == 0
    assert data_of(client.read(a)) == ["x", "x"]


def test_a_condition_that_does_not_hold_names_its_topic(here: Here, client: Client) -> None:
    a, b = fresh_name(), fresh_name()
    refused = here("transaction", input=body(one(a, 1), one(b, 2, expected_head_seq=7)))
    assert (refused.returncode, refused.stdout) == (5, "")
    assert refused.stderr.startswith(f"topics: {b}: ")
    assert client.get(f"/v0/topics/{a}").status_code == 404


@pytest.mark.parametrize(
    ("arguments", "given", "said"),
    [
        ([], "t\n", "line 1 is not of the form TOPIC DATA"),
        ([], "t x\n y\n", "line 2 is not of the form TOPIC DATA"),
        (["--ndjson"], "t 1\n\nu {\n", "line 3 is not JSON"),
        (["--ndjson"], '{"appends": []}', "are for lines"),
        ([], '{"appends": ', "not the body of a transaction"),
        ([], '{"append": []}', "not the body of a transaction"),
        (["--key", "k"], '{"appends": [], "idempotency_key": "l"}', "--key is given"),
        (["--key", "k", "--key", "l"], "t x\n", "given once"),
        (["/nowhere/file"], "", "/nowhere/file: No such file"),
        (["--token-file", "-"], "t x\n", "cannot both"),
    ],
)
def test_what_is_no_transaction_is_refused_before_it_is_sent(
    here: Here, arguments: list[str], given: str, said: str
) -> None:
    done = here("transaction", "--url", "http://127.0.0.1:1", *arguments, input=given)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_a_daemon_that_is_away_is_no_success(here: Here) -> None:
    assert here("transaction", "--url", "http://127.0.0.1:1", input="a 1\nb 2\n").returncode == 6
