"""`ls`, `show`, `create`, `set`, `rm`, `metrics` and `completion`."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.canned import CannedDaemon, InProcess
from tests.cli.command_line import CommandLine, environment, fields
from tests.cli.terminal import Terminal
from tests.conformance.client import fresh_name
from tests.processes.forked import PROGRAM

CONFIG = {
    **{"type": "log", "ttl_ms": 604_800_000, "cap_records": 0, "cap_bytes": 10_000_000, "discard": "old"},
    **{"durability": "disk", "durable": False, "priority": None, "auto_priority": True, "auto_create": True},
    **{"idempotency_window_ms": 120_000, "dedupe_node": True, "lease_ms": 30_000, "claim_jitter_ms": 0},
    **{"max_deliveries": 0, "dead_letter": None, "completed": None, "leases_durable": False, "retention": "limits"},
    "schema": None,
    **{"retry": None, "priority_aging_ms": 60_000, "max_in_flight": 0, "rate": None, "order_by": None},
    "max_in_flight_per_key": None,
    **{"segment_max_events": None, "segment_max_bytes": None, "segment_max_age_ms": None},
    "compression": None,
    "evidence": False,
    **{"keep_per_tag": 0, "null_ttl_ms": 86_400_000},
}
STATE = {
    **{"topic": "orders", "type": "log", "epoch": 3, "head_seq": 12345, "earliest_seq": 346, "next_seq": 12346},
    **{"count": 12000, "bytes": 1_500_000, "synced_seq": 12345, "config": CONFIG, "effective_priority": 0},
    **{"last_write_ts": 1_763_726_400_123, "last_read_ts": None},
}
ROUTER = {
    **{"router": "eu", "source": "all", "dest": "orders", "preserve_node": True, "preserve_tag": True},
    **{"create_dest": True, "filter": ["tag", "Glob", "eu-*"], "allow_cycle": False, "guarantee": "at_least_once"},
    **{"from": "tail", "forwarded_total": 17, "cursor_seq": 20, "lag": 3},
}


def summary(topic: str, **fields: Any) -> dict[str, Any]:
    names = ("type", "epoch", "head_seq", "earliest_seq", "count", "bytes", "effective_priority")
    rest = {"topic": topic, "durable": False, "durability": "disk"}
    return {name: STATE[name] for name in names} | rest | fields


# ----------------------------------------------------------------- ls


def test_ls_prints_an_aligned_table_of_all_pages(here: InProcess) -> None:
    here.daemon.on("GET", "/v0/topics", {"topics": [summary("a")], "next_cursor": "abc"})
    here.daemon.on("GET", "/v0/topics", {"topics": [summary("longer", type="queue", count=1)]})
    ended = here("ls", "--prefix", "x")
    assert ended.out.splitlines() == [
        "topic   type   durability  records   bytes   head  earliest",
        "a       log    disk         12,000  1.5 MB  12345       346",
        "longer  queue  disk              1  1.5 MB  12345       346",
    ]
    assert ["prefix=x" in asked.target for asked in here.daemon.asked] == [True, True]
    assert "cursor=abc" in here.daemon.asked[1].target


def test_the_long_list_has_more_columns(here: InProcess) -> None:
    here.daemon.on("GET", "/v0/topics", {"topics": [summary("a")]})
    titles, row = fields(here("ls", "--long").out)
    assert titles[-2:] == ["epoch", "priority"]
    assert row[-2:] == ["3", "0"]


def test_the_list_as_json_is_one_document_of_all_pages(here: InProcess) -> None:
    here.daemon.on("GET", "/v0/topics", {"topics": [summary("a")], "next_cursor": "abc"})
    here.daemon.on("GET", "/v0/topics", {"topics": [summary("b")]})
    assert json.loads(here("ls", "--json").out) == {"topics": [summary("a", queue=None), summary("b", queue=None)]}


# ----------------------------------------------------------------- show


def test_show_tells_state_configuration_and_routers(here: InProcess) -> None:
    queue = {"ready": 1000, "in_flight": 2, "delayed": 3, "dead_lettered": 4}
    here.daemon.on("GET", "/v0/topics/orders", STATE | {"type": "queue", "queue": queue})
    here.daemon.on("GET", "/v0/routers", {"routers": [ROUTER]})
    here.daemon.on("GET", "/v0/routers", {"routers": []})
    out = here("show", "orders").out
    for line in (
        *("topic          orders", "records        12,000", "bytes          1.5 MB", "seqs           346 to 12345"),
        *("last write     2025-11-21 12:00:00.123", "last read      -", "  ttl_ms                 7d"),
        *(
            "jobs           1,000 ready, 2 in flight, 3 delayed",
            "dead-lettered  4 so far",
            "  priority               none",
        ),
        *(
            "  cap_records            off",
            "  cap_bytes              10,000,000 (10.0 MB)",
            "  dedupe_node            yes",
        ),
        *("routers into it", "eu      all     orders  eu-*           17    3"),
    ):
        assert line in out.splitlines()
    assert "routers out of it" not in out
    assert "touch=false" in here.daemon.asked[0].target


def test_show_as_json_is_the_answer_and_the_routers(here: InProcess) -> None:
    here.daemon.on("GET", "/v0/topics/orders", STATE)
    here.daemon.on("GET", "/v0/routers", {"routers": []})
    here.daemon.on("GET", "/v0/routers", {"routers": [ROUTER]})
    shown = json.loads(here("show", "orders", "--json").out)
    assert shown == STATE | {
        "bucket_seq": None,
        "places": None,
        "queue": None,
        "fences": {},
        "routers_in": [],
        "routers_out": [ROUTER],
    }


# ----------------------------------------------------------------- create and set


@pytest.mark.parametrize(
    ("options", "body"),
    [
        ("", {}),
        ("--type queue", {"type": "queue"}),
        ("--ttl 7d", {"ttl_ms": 604_800_000}),
        ("--ttl-ms 500", {"ttl_ms": 500}),
        ("--ttl none", {"ttl_ms": 0}),
        ("--cap-records 10 --cap-bytes 10MB", {"cap_records": 10, "cap_bytes": 10_000_000}),
        ("--cap-records none --cap-bytes off", {"cap_records": 0, "cap_bytes": 0}),
        ("--discard reject --durability fsync", {"discard": "reject", "durability": "fsync"}),
        ("--durable", {"durable": True}),
        ("--no-durable", {"durable": False}),
        ("--priority -5", {"priority": -5}),
        ("--priority none", {"priority": None}),
        ("--no-auto-priority --auto-create", {"auto_priority": False, "auto_create": True}),
        ("--idempotency-window 1h", {"idempotency_window_ms": 3_600_000}),
        ("--no-dedupe-node --lease 1m30s", {"dedupe_node": False, "lease_ms": 90_000}),
        ("--claim-jitter 20ms", {"claim_jitter_ms": 20}),
        ("--max-deliveries 5 --dead-letter dead", {"max_deliveries": 5, "dead_letter": "dead"}),
        ("--max-deliveries none --dead-letter none", {"max_deliveries": 0, "dead_letter": None}),
        ("--leases-durable", {"leases_durable": True}),
        ("--retention consumed", {"retention": "consumed"}),
        ("--order-by node", {"order_by": "node"}),
        ("--order-by none", {"order_by": None}),
        ("--max-in-flight-per-key none", {"max_in_flight_per_key": None}),
        (
            '--retry {"delay_ms":5} --rate {"jobs":1,"per_ms":9}',
            {"retry": {"delay_ms": 5}, "rate": {"jobs": 1, "per_ms": 9}},
        ),
        ("--retry none --rate off", {"retry": None, "rate": None}),
        ("--max-in-flight 7 --priority-aging 1m", {"max_in_flight": 7, "priority_aging_ms": 60_000}),
        (
            "--segment-max-events 5 --segment-max-bytes 4KiB --segment-max-age 1h",
            {"segment_max_events": 5, "segment_max_bytes": 4096, "segment_max_age_ms": 3_600_000},
        ),
        ("--segment-max-age off", {"segment_max_age_ms": 0}),
        ("--compression off", {"compression": "off"}),
        ("--evidence", {"evidence": True}),
        ("--compression daemon", {"compression": None}),
        ("--keep-per-tag 1 --null-ttl 2h", {"keep_per_tag": 1, "null_ttl_ms": 7_200_000}),
        ("--keep-per-tag 0 --null-ttl none", {"keep_per_tag": 0, "null_ttl_ms": 0}),
        (
            "--segment-max-events daemon --segment-max-bytes daemon --segment-max-age daemon",
            {"segment_max_events": None, "segment_max_bytes": None, "segment_max_age_ms": None},
        ),
    ],
)
def test_create_sends_what_is_given_and_nothing_else(here: InProcess, options: str, body: dict[str, Any]) -> None:
    here.daemon.on("PUT", "/v0/topics/orders", {"topic": "orders", "created": True, "config": CONFIG})
    assert here("create", "orders", *options.split()) == (0, "orders: created (log, disk)\n", "")
    assert here.daemon.asked[0].body == body


def test_there_is_an_option_for_every_setting_of_a_topic() -> None:
    from topics.cli.topic_commands import create, set_  # noqa: PLC0415
    from topics.model import TopicConfig  # noqa: PLC0415

    settings = set(TopicConfig.__struct_fields__)
    assert settings <= {param.name for param in create.params}
    assert settings - {"type"} <= {param.name for param in set_.params}


@pytest.mark.parametrize(
    "options",
    [
        "--ttl soon",
        "--cap-bytes -1",
        "--cap-records 1.5",
        "--discard new",
        "--priority high",
        "--durability x",
        "--lease off",
    ],
)
def test_a_value_that_is_none_is_refused_before_anything_is_asked(here: InProcess, options: str) -> None:
    ended = here("create", "orders", *options.split())
    assert (ended.code, ended.out, here.daemon.asked) == (2, "", [])
    assert options.split(maxsplit=1)[0] in ended.err


def test_set_creates_no_topic_and_reads_none(here: InProcess) -> None:
    here.daemon.refuse("PUT", "/v0/topics/no", 404, "topic_not_found", "topic 'no' does not exist", topic="no")
    assert here("set", "no", "--ttl", "1h") == (3, "", "topics: topic 'no' does not exist\n")
    here.daemon.on("PUT", "/v0/topics/orders", {"topic": "orders", "created": False, "config": CONFIG})
    assert here("set", "orders", "--ttl", "1h") == (0, "orders: configured (log, disk)\n", "")
    assert [asked.target for asked in here.daemon.asked] == [
        "/v0/topics/no?create=false",
        "/v0/topics/orders?create=false",
    ]
    assert here("set", "orders").code == 2


def test_the_answers_about_several_topics_are_an_array(here: InProcess) -> None:
    answers = [{"topic": name, "created": True, "config": CONFIG} for name in "ac"]
    here.daemon.on("PUT", "/v0/topics/a", answers[0])
    here.daemon.refuse("PUT", "/v0/topics/b", 409, "topic_exists_incompatible", "b is a queue")
    here.daemon.on("PUT", "/v0/topics/c", answers[1])
    ended = here("create", "a", "b", "c", "--json")
    assert (ended.code, json.loads(ended.out), ended.err) == (5, answers, "topics: b is a queue\n")
    assert json.loads(here("create", "a", "--json").out) == answers[0]


# ----------------------------------------------------------------- rm


def test_rm_says_what_went_with_a_topic_and_what_was_not_there(here: InProcess) -> None:
    here.daemon.on("DELETE", "/v0/topics/a", {"topic": "a", "deleted": True, "routers_removed": ["r", "s"]})
    here.daemon.on("DELETE", "/v0/topics/b", {"topic": "b", "deleted": False, "routers_removed": []})
    assert here("rm", "b", "a") == (3, "a: deleted, with routers r, s\n", "topics: topic 'b' does not exist\n")
    here("rm", "a", "--if-empty")
    assert [asked.target for asked in here.daemon.asked][-1] == "/v0/topics/a?if_empty=true"


# ----------------------------------------------------------------- on a terminal


@contextmanager
def on_terminal(url: str, *arguments: str, columns: int = 120) -> Iterator[Terminal]:
    with Terminal([*PROGRAM, *arguments], environment(TOPICS_URL=url), columns=columns) as terminal:
        yield terminal


@pytest.mark.parametrize(
    ("typed", "code", "deleted"), [("n\n", 1, 0), ("\n", 1, 0), ("\x03", 130, 0), ("\x04", 130, 0), ("y\n", 3, 2)]
)
def test_rm_asks_somebody_who_sits_at_a_terminal(canned: CannedDaemon, typed: str, code: int, deleted: int) -> None:
    canned.on("DELETE", "/v0/topics/a", {"topic": "a", "deleted": True, "routers_removed": []})
    canned.on("DELETE", "/v0/topics/b", {"topic": "b", "deleted": False, "routers_removed": []})
    with on_terminal(canned.url, "rm", "a", "b") as terminal:
        terminal.until("Delete a, b, with all records and routers? [y/N]")
        terminal.press(typed)
        assert terminal.wait() == code
        assert "Traceback" not in terminal.text
    assert len(canned.asked) == deleted


@pytest.mark.slow
def test_rm_does_not_ask_who_has_said_yes(canned: CannedDaemon) -> None:
    canned.on("DELETE", "/v0/topics/a", {"topic": "a", "deleted": True, "routers_removed": []})
    with on_terminal(canned.url, "rm", "a", "--yes") as terminal:
        assert (terminal.wait(), terminal.text) == (0, "a: deleted\n")


@pytest.mark.slow
def test_a_list_on_a_terminal_is_a_table_that_fits_and_loses_nothing(canned: CannedDaemon) -> None:
    name = "n" * 255
    canned.on("GET", "/v0/topics", {"topics": [summary("short"), summary(name)]})
    with on_terminal(canned.url, "ls", columns=80) as terminal:
        assert terminal.wait() == 0
        lines = terminal.text.splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(line.count("n") for line in lines[2:]) >= 255
    with on_terminal(canned.url, "ls", "--json") as terminal:
        assert terminal.wait() == 0
        assert json.loads(terminal.text)["topics"][0]["topic"] == "short"
        assert len(terminal.text.splitlines()) > 10


@pytest.mark.slow
def test_what_others_have_written_does_not_reach_the_terminal_as_commands(canned: CannedDaemon) -> None:
    hostile = ROUTER | {"filter": ["tag", "Eq", "\x1b]0;gotcha\x07[bold]red[/bold]"]}
    canned.on("GET", "/v0/routers", {"routers": [hostile]})
    with on_terminal(canned.url, "router", "ls") as terminal:
        assert terminal.wait() == 0
        assert "\\x1b]0;gotcha\\x07[bold]red[/bold]" in terminal.text
        assert "\x07" not in terminal.raw


# ----------------------------------------------------------------- metrics


def test_metrics_are_text_or_json_and_can_be_searched(here: InProcess) -> None:
    here.daemon.on("GET", "/v0/metrics", b"topics_ready 1\ntopics_topics 2\n", Content_Type="text/plain")
    assert here("metrics", "--grep", "ready").out == "topics_ready 1\n"
    assert here("metrics", "--grep", "(").code == 2


def test_metrics_as_json_are_searched_by_name(here: InProcess) -> None:
    labelled = [{"labels": {"topic": "a"}, "value": 1.0}]
    here.daemon.on("GET", "/v0/metrics", {"topics_ready": 1.0, "topics_topic_head_seq": labelled})
    found = json.loads(here("metrics", "--json", "--grep", "head").out)
    assert found == {"topics_topic_head_seq": labelled}


# ----------------------------------------------------------------- completion


def complete(here: InProcess, monkeypatch: pytest.MonkeyPatch, line: str) -> list[str]:
    """What bash is offered at the end of `line`."""
    for name, value in {
        "_TOPICS_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(line.count(" ")),
    }.items():
        monkeypatch.setenv(name, value)
    ended = here()
    assert (ended.code, ended.err) == (0, "")
    return [answer.partition(",")[2] for answer in ended.out.split()]


def test_names_of_topics_and_routers_are_completed_by_the_daemon(
    here: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.daemon.on("GET", "/v0/topics", {"topics": [summary("orders"), summary("orders-eu")]})
    here.daemon.on("GET", "/v0/routers", {"routers": [ROUTER]})
    assert complete(here, monkeypatch, "topics show ord") == ["orders", "orders-eu"]
    assert "prefix=ord" in here.daemon.asked[0].target
    monkeypatch.setenv("TOPICS_URL", "http://127.0.0.1:1")
    assert complete(here, monkeypatch, f"topics --url {here.daemon.url} router show e") == ["eu"]


def test_without_a_daemon_no_name_is_offered_and_nobody_waits(here: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    here.daemon.refuse("GET", "/v0/topics", 401, "unauthorized", "no key")
    assert complete(here, monkeypatch, "topics show ord") == []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for url in ("http://127.0.0.1:1", "no url", f"http://127.0.0.1:{silent.getsockname()[1]}"):
            monkeypatch.setenv("TOPICS_URL", url)
            assert complete(here, monkeypatch, "topics show ord") == []


def test_commands_are_completed_where_no_command_is_named_yet(here: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"serve", "show", "set"} <= set(complete(here, monkeypatch, "topics s"))
    assert "ls" in complete(here, monkeypatch, "topics ")
    assert "guide" not in complete(here, monkeypatch, "topics ")


def test_flags_of_serve_are_completed_where_they_may_stand(here: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    assert complete(here, monkeypatch, "topics --port") == ["--port", "--port-file"]
    assert complete(here, monkeypatch, "topics --port 0 --data") == ["--data-dir"]
    assert complete(here, monkeypatch, "topics serve --data") == ["--data-dir"]
    assert complete(here, monkeypatch, "topics --hel") == ["--help"]
    assert complete(here, monkeypatch, "topics --ur") == ["--url"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_asks_the_command(here: InProcess, shell: str) -> None:
    ended = here("completion", shell)
    assert ended.code == 0
    assert f"_TOPICS_COMPLETE={shell}_complete" in ended.out


def test_bash_takes_its_script(here: InProcess) -> None:
    checked = subprocess.run(["bash", "-n"], input=here("completion", "bash").out, text=True, check=False)
    assert checked.returncode == 0


# ----------------------------------------------------------------- against a daemon


@pytest.mark.slow
def test_the_life_of_a_topic(topics: CommandLine) -> None:
    name, other = fresh_name(), fresh_name()
    assert topics("create", name, "--ttl", "7d", "--durability", "fsync").stdout == f"{name}: created (log, fsync)\n"
    assert topics("create", name, "--cap-records", "5").stdout == f"{name}: configured (log, fsync)\n"
    assert topics("create", name, "--type", "queue").returncode == 5
    config = topics.json("show", name)["config"]
    assert (config["ttl_ms"], config["cap_records"], config["durability"]) == (604_800_000, 5, "fsync")
    topics.json("set", name, "--ttl", "none")
    assert topics.json("show", name)["config"]["ttl_ms"] == 0
    assert topics("set", other, "--ttl", "1h").returncode == 3
    assert [topic["topic"] for topic in topics.json("ls")["topics"] if topic["topic"] in (name, other)] == [name]
    assert name in topics("ls").stdout
    assert "queue" in topics("create", other, "--type", "queue", "--lease", "1m").stdout
    assert "jobs" in topics("show", other).stdout
    done = topics("rm", name, "never", other)
    assert (done.returncode, done.stdout) == (3, f"{name}: deleted\n{other}: deleted\n")
    assert topics("show", name).returncode == 3


@pytest.mark.slow
def test_the_metrics_of_a_daemon(topics: CommandLine) -> None:
    assert "topics_ready 1.0" in topics("metrics").stdout.splitlines()
    assert topics.json("metrics", "--grep", "^topics_ready$") == {"topics_ready": 1.0}


def test_a_schema_is_read_from_a_file_and_taken_away(here: InProcess, tmp_path: Path) -> None:
    here.daemon.on("PUT", "/v0/topics/a", {"topic": "a", "created": True, "config": CONFIG | {"schema": {"const": 1}}})
    (tmp_path / "a.json").write_text('{"const": 1}')
    (tmp_path / "bad.json").write_text("{")
    assert here("create", "a", "--schema", str(tmp_path / "a.json")).code == 0
    assert here("set", "a", "--schema", "none").code == 0
    assert [asked.body for asked in here.daemon.asked] == [{"schema": {"const": 1}}, {"schema": None}]
    assert here("create", "a", "--schema", str(tmp_path / "bad.json")).code == 2
    assert here("create", "a", "--schema", str(tmp_path / "none.json")).code == 2


def test_seal(here: InProcess) -> None:
    here.daemon.on("POST", "/v0/topics/a/seal", {"topic": "a", "segments": 3})
    assert here("seal", "a") == (0, "a: sealed, 3 segments\n", "")
    assert here("seal", "--json", "a") == (0, '{"topic":"a","segments":3}\n', "")
    here.daemon.on("POST", "/v0/topics/b/seal", {"topic": "b", "segments": 1})
    done = here("seal", "a", "b")
    assert (done.code, done.out) == (0, "a: sealed, 3 segments\nb: sealed, 1 segment\n")
