"""`topics queue`: jobs by hand, and jobs done by a command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.canned import CannedDaemon, InProcess
from tests.cli.command_line import CommandLine, fields
from tests.cli.terminal import Terminal
from tests.client.ports import free_port
from tests.conformance.client import Daemon, fresh_name, until
from tests.processes.forked import PROGRAM
from topics.cli.app import run
from topics.client import Client, NewRecord, Record

WITHIN_S = 30.0

# --- one call each, against canned answers ---

JOB = {"$seq": 7, "lease_id": "lease_a", "deadline": 1_795_296_428_690, "$ts": 1, "deliveries": 2, "data": [1]}
EVIL = "\x1b]0;owned\x07"


def test_claimed_jobs_are_a_table(here: InProcess, canned: CannedDaemon) -> None:
    more = JOB | {"$seq": 8, "$tag": EVIL, "$node": "w", "data": "two"}
    canned.on("POST", "/v0/topics/q/claim", {"topic": "q", "claimed": [JOB, more], "count": 2, "ready": 5})
    done = here("queue", "claim", "q", "--node", "n", "--max", "2", "--lease-ms", "1m", "--wait-ms", "250")
    assert (done.code, done.err) == (0, "topics: 2 claimed, 5 more ready\n")
    titles, first, second = done.out.splitlines()
    assert titles.split() == ["seq", "lease", "id", "until", "deliveries", "tag", "node", "data"]
    assert first.split() == ["7", "lease_a", "2026-11-21", "21:27:08.690", "2", "[1]"]
    assert second.split()[5:] == ["\\x1b]0;owned\\x07", "w", '"two"']
    (asked,) = canned.asked
    assert asked.body == {"node": "n", "max": 2, "lease_ms": 60_000, "wait_ms": 250}


def test_as_json_they_are_as_the_interface_shows_them(here: InProcess, canned: CannedDaemon) -> None:
    more = JOB | {"$tag": "t", "$node": "w", "meta": {"k": "v"}}
    answer = {"topic": "q", "claimed": [JOB, more], "count": 2, "ready": 5}
    canned.on("POST", "/v0/topics/q/claim", answer)
    assert json.loads(here("queue", "claim", "q", "--json").out) == answer


def test_a_claim_says_that_results_are_wanted(here: InProcess, canned: CannedDaemon) -> None:
    answer = {"topic": "q", "claimed": [JOB], "count": 1, "ready": 5, "wants_results": True}
    canned.on("POST", "/v0/topics/q/claim", answer)
    assert json.loads(here("queue", "claim", "q", "--json").out) == answer


def test_no_job_at_all_is_no_failure(here: InProcess, canned: CannedDaemon) -> None:
    canned.on("POST", "/v0/topics/q/claim", {"topic": "q", "claimed": [], "count": 0, "ready": 0})
    assert here("queue", "claim", "q").code == 0


LEASES = ("--lease-id", "lease_a", "--lease-id", "lease_b")


@pytest.mark.parametrize(
    ("arguments", "answer", "sent", "said"),
    [
        (("ack",), {"acked": 2}, {}, "2 acked, 1 ready, 3 in flight\n"),
        (("nack", "--delay-ms", "2s"), {"nacked": 2}, {"delay_ms": 2000}, "2 given back, 1 ready, 3 in flight\n"),
        (
            ("nack", "--error", "no such customer", "--no-count", "--dead"),
            {"nacked": 2},
            {"error": "no such customer", "count": False, "dead": True},
            "2 given back, 1 ready, 3 in flight\n",
        ),
        (
            ("extend", "--lease-ms", "1m"),
            {"extended": 2, "deadlines": {"7": 1_795_296_428_690, "8": 1_795_296_428_691}},
            {"lease_ms": 60_000},
            "7 until 2026-11-21 21:27:08.690\n8 until 2026-11-21 21:27:08.691\n",
        ),
    ],
)
def test_jobs_are_settled_under_the_name_and_the_leases_given(
    here: InProcess, canned: CannedDaemon, arguments: tuple[str, ...], answer: Any, sent: Any, said: str
) -> None:
    canned.on(
        "POST", f"/v0/topics/q/{arguments[0]}", {"topic": "q", "skipped": [], "ready": 1, "in_flight": 3} | answer
    )
    done = here("queue", *arguments, "q", "7", "8", "--node", "n", *LEASES)
    assert done == (0, said, "")
    (asked,) = canned.asked
    assert asked.body == {"node": "n", "seqs": [7, 8], "lease_ids": ["lease_a", "lease_b"]} | sent


@pytest.mark.parametrize("as_json", [False, True])
def test_a_job_that_was_skipped_is_told_and_is_a_failure(here: InProcess, canned: CannedDaemon, as_json: bool) -> None:
    answer = {"topic": "q", "acked": 1, "skipped": [8, 9], "ready": 0, "in_flight": 0}
    canned.on("POST", "/v0/topics/q/ack", answer)
    done = here("queue", "ack", "q", "7", "8", "9", *(("--json",) if as_json else ()))
    assert (done.code, done.err) == (1, "topics: skipped, as they are not held (any more): 8, 9\n")
    assert json.loads(done.out) == answer if as_json else done.out == "1 acked, 0 ready, 0 in flight\n"


def test_there_is_a_lease_id_for_each_job_or_none(here: InProcess, canned: CannedDaemon) -> None:
    done = here("queue", "ack", "q", "7", *LEASES)
    assert done.code == 2
    assert "2 times --lease-id for 1 jobs" in done.err
    assert canned.asked == []


def test_results_are_json_one_for_each_job_or_none(here: InProcess, canned: CannedDaemon) -> None:
    canned.on("POST", "/v0/topics/q/ack", {"topic": "q", "acked": 2, "skipped": [], "ready": 0, "in_flight": 0})
    done = here("queue", "ack", "q", "7", "8", "--node", "n", "--result", '{"a": 1}', "--result", "null")
    assert done.code == 0
    assert canned.asked[0].body == {"node": "n", "seqs": [7, 8], "results": [{"a": 1}, None]}
    done = here("queue", "ack", "q", "7", "8", "--result", "1")
    assert (done.code, "1 times --result for 2 jobs" in done.err) == (2, True)
    done = here("queue", "ack", "q", "7", "--result", "{")
    assert (done.code, "is not JSON" in done.err) == (2, True)
    assert len(canned.asked) == 1


def test_queues_are_listed_with_their_jobs_and_one_that_goes_meanwhile_is_left_out(
    here: InProcess, canned: CannedDaemon
) -> None:
    line: dict[str, Any] = {"epoch": 1, "head_seq": 9, "earliest_seq": 1, "count": 9, "bytes": 9, "durable": False}
    line |= {"durability": "disk", "effective_priority": 0}
    listed = [{"topic": "a", "type": "log"}, {"topic": "b", "type": "queue"}, {"topic": "c", "type": "queue"}]
    canned.on("GET", "/v0/topics", {"topics": [line | one for one in listed]})
    jobs = {"ready": 1234, "in_flight": 2, "delayed": 3, "dead_lettered": 4, "paused": True}
    canned.on("GET", "/v0/topics/b", state("b", jobs))
    canned.refuse("GET", "/v0/topics/c", 404, "topic_not_found", "topic 'c' does not exist")
    done = here("queue", "ls")
    assert fields(done.out) == [
        ["topic", "ready", "in", "flight", "delayed", "dead-lettered", "paused"],
        ["b", "1,234", "2", "3", "4", "yes"],
    ]
    assert json.loads(here("queue", "ls", "--json").out) == [{"topic": "b"} | jobs]


def test_a_queue_is_paused_and_resumed(here: InProcess, canned: CannedDaemon) -> None:
    counts = {"ready": 5, "in_flight": 2, "delayed": 0, "dead_lettered": 0}
    until = {"paused": True, "paused_until": 1_795_296_428_690}
    canned.on("POST", "/v0/topics/q/pause", {"topic": "q", "queue": counts | until})
    canned.on("POST", "/v0/topics/q/resume", {"topic": "q", "queue": counts | {"paused": False}})
    done = here("queue", "pause", "q", "--until", "2026-11-21T21:27:08.690Z")
    assert (done.code, done.out) == (0, "paused until 2026-11-21 21:27:08.690, 5 ready, 2 in flight\n")
    assert here("queue", "resume", "q").out == "not paused, 5 ready, 2 in flight\n"
    assert canned.asked[0].body == {"until": 1_795_296_428_690}


def state(name: str, jobs: Any) -> Any:
    config: dict[str, Any] = dict.fromkeys(
        ("ttl_ms", "cap_records", "cap_bytes", "idempotency_window_ms", "lease_ms"), 0
    )
    config |= dict.fromkeys(("claim_jitter_ms", "max_deliveries"), 0)
    config |= {"type": "queue", "discard": "old", "durability": "disk", "priority": None, "dead_letter": None}
    config |= dict.fromkeys(("durable", "auto_priority", "auto_create", "dedupe_node", "leases_durable"), False)
    seqs = dict.fromkeys(("epoch", "head_seq", "earliest_seq", "next_seq", "count", "bytes", "synced_seq"), 1)
    rest = {"effective_priority": 0, "last_write_ts": None, "last_read_ts": None, "queue": jobs}
    return {"topic": name, "type": "queue", "config": config} | seqs | rest


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--exec", "no-such-command-1"), "'no-such-command-1' is no command that can be run"),
        (("--exec", "cat 'a"), "no closing quotation"),
        (("--exec", " ", "--shell"), "there is no command"),
        ((), "Missing option '--exec'"),
        (("--exec", "true", "--lease-ms", "99"), "must be from 100ms to 1d"),
    ],
)
def test_what_can_never_work_is_refused_before_a_job_is_claimed(
    here: InProcess, canned: CannedDaemon, arguments: tuple[str, ...], problem: str
) -> None:
    done = here("queue", "work", "q", *arguments)
    assert done.code == 2
    assert problem in done.err
    assert canned.asked == []


# --- work, against a daemon ---


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Client]:
    with Client(daemon.url) as client:
        yield client


@pytest.fixture
def jobs(client: Client) -> str:
    """A queue with three jobs."""
    name = fresh_name("jobs")
    client.create(name, type="queue")
    client.append(name, [NewRecord({"n": 1}, tag="a", meta={"to-whom": "ann"}), NewRecord("two"), NewRecord(3)])
    return name


@pytest.mark.slow
def test_a_command_gets_each_job_and_what_it_prints_goes_through(
    topics: CommandLine, client: Client, jobs: str
) -> None:
    shown = "cat; echo $TOPICS_JOB_TOPIC $TOPICS_JOB_SEQ $TOPICS_JOB_TAG $TOPICS_JOB_META_TO_WHOM; echo $TOPICS_URL >&2"
    done = topics("queue", "work", jobs, "--once", "--shell", "--exec", shown, TOPICS_TOKEN="s3cr3t")
    assert done.returncode == 0
    assert done.stdout == f'{{"n":1}}\n{jobs} 1 a ann\n"two"\n{jobs} 2\n3\n{jobs} 3\n'
    assert done.stderr == f"{client.url}\n" * 3 + "topics: 3 done, 0 failed\n"
    assert left(client, jobs) == (0, 0, 0)


@pytest.mark.slow
def test_a_command_gets_text_without_quotes_where_that_is_asked_for(
    topics: CommandLine, client: Client, jobs: str
) -> None:
    done = topics("queue", "work", jobs, "--once", "--raw", "--exec", "cat")
    assert (done.returncode, done.stdout) == (0, '{"n":1}\ntwo\n3\n')


@pytest.mark.slow
@pytest.mark.parametrize("sends", [False, True])
def test_what_a_command_prints_is_the_result_where_that_is_asked_for(
    topics: CommandLine, client: Client, jobs: str, sends: bool
) -> None:
    client.update(jobs, completed=f"{jobs}-done")
    options = ["--results"] if sends else []
    done = topics("queue", "work", jobs, "--once", "--raw", "--exec", "cat", *options)
    assert (done.returncode, done.stdout) == (0, "" if sends else '{"n":1}\ntwo\n3\n')
    until(lambda: client.state(f"{jobs}-done").head_seq == 3)
    results = [record.data["result"] for record in client.read(f"{jobs}-done") if isinstance(record, Record)]
    assert results == ([{"n": 1}, "two", 3] if sends else [None] * 3)


def test_work_that_ends_with_the_queue_does_not_wait_for_a_daemon_that_is_not_there(
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert run(["queue", "work", "q", "--once", "--exec", "cat", "--url", url]) == 6
    assert url in capsys.readouterr().err


@pytest.mark.slow
def test_as_json_each_job_is_a_line_and_the_output_of_commands_is_elsewhere(
    topics: CommandLine, client: Client, jobs: str
) -> None:
    arguments = ("--exec", 'sh -c "echo hello; test $TOPICS_JOB_SEQ != 2"', "--max-jobs", "2", "--json")
    done = topics("queue", "work", jobs, *arguments)
    assert done.returncode == 1
    first, second = map(json.loads, done.stdout.splitlines())
    assert first.pop("duration_ms") >= 0
    assert first == {"topic": jobs, "seq": 1, "deliveries": 1, "outcome": "done", "exit_code": 0, "lost": False}
    assert (second["seq"], second["outcome"], second["exit_code"]) == (2, "failed", 1)
    assert done.stderr == "hello\nhello\ntopics: 1 done, 1 failed\n"
    assert left(client, jobs) in {(1, 0, 1), (2, 0, 0)}  # the second comes again after a while


@pytest.mark.slow
def test_a_command_that_turns_out_not_to_be_there_ends_the_worker_and_costs_no_job(
    topics: CommandLine, client: Client, jobs: str
) -> None:
    done = topics("queue", "work", jobs, "--shell", "--exec", "no-such-command-1")
    assert done.returncode == 1
    assert "topics: the shell found nothing that it can run (exit code 127): 'no-such-command-1'\n" in done.stderr
    assert left(client, jobs) == (3, 0, 0)


@pytest.mark.slow
def test_a_pipe_whose_reader_has_gone_ends_it_and_what_was_done_stays_done(
    topics: CommandLine, client: Client, jobs: str
) -> None:
    worker = topics.start("queue", "work", jobs, "--exec", "true", "--json")
    try:
        assert worker.stdout is not None
        worker.stdout.close()
        assert worker.wait(WITHIN_S) == 141
    finally:
        worker.kill()
    assert left(client, jobs) == (2, 0, 0)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "code"), [(None, 3), ("log", 5)])
def test_there_is_no_work_without_a_queue(topics: CommandLine, client: Client, kind: Any, code: int) -> None:
    name = fresh_name()
    if kind is not None:
        client.create(name, type=kind)
    done = topics("queue", "work", name, "--exec", "true")
    assert done.returncode == code
    assert name in done.stderr


WAITS = """trap 'echo INTERRUPTED' INT TERM HUP; echo $$ > {0}/pid; touch {0}/begun
while ! test -e {0}/go; do sleep 0.02; done; echo finished"""


@pytest.mark.slow
def test_ctrl_c_lets_the_running_command_finish_which_does_not_notice(
    daemon: Daemon, topics: CommandLine, client: Client, jobs: str, tmp_path: Path
) -> None:
    line = ("queue", "work", jobs, "--shell", "--exec", WAITS.format(tmp_path))
    with Terminal([*PROGRAM, *line], topics.environ) as terminal:
        until((tmp_path / "begun").exists, within_s=WITHIN_S)
        terminal.press("\x03")
        terminal.until("ending: waiting for 1 running")
        assert terminal.process.poll() is None
        (tmp_path / "go").touch()
        assert terminal.wait() == 0
        assert "finished" in terminal.text
        assert "INTERRUPTED" not in terminal.text
        assert "1 done, 0 failed" in terminal.text
    assert left(client, jobs) == (2, 0, 0)


@pytest.mark.slow
def test_a_second_signal_kills_what_runs_and_gives_the_job_back_at_once(
    topics: CommandLine, client: Client, jobs: str, tmp_path: Path
) -> None:
    worker = topics.start("queue", "work", jobs, "--shell", "--exec", WAITS.format(tmp_path))
    try:
        until((tmp_path / "begun").exists, within_s=WITHIN_S)
        worker.send_signal(signal.SIGTERM)
        assert worker.stderr is not None
        assert b"waiting for 1 running" in worker.stderr.readline()
        worker.send_signal(signal.SIGINT)
        _, said = worker.communicate(timeout=WITHIN_S)
    finally:
        worker.kill()
    assert worker.returncode == 130
    assert b"job 1 was killed, delivery 1\n" in said
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    assert left(client, jobs) == (3, 0, 0)


@pytest.mark.slow
def test_a_worker_survives_the_daemon(tmp_path: Path, start_worker: Any) -> None:
    """Whose jobs are done all the same, the one in hand at its end included."""
    daemon, worker = start_worker(WAITS.format(tmp_path))
    until((tmp_path / "begun").exists, within_s=WITHIN_S)
    daemon.end(signal.SIGKILL)
    (tmp_path / "go").touch()
    daemon.start().close()
    with Client(daemon.url) as client:
        until(lambda: client.state("jobs").count == 0, within_s=WITHIN_S)
    worker.send_signal(signal.SIGINT)
    _, said = worker.communicate(timeout=WITHIN_S)
    assert worker.returncode == 0
    assert b" 0 failed\n" in said


@pytest.fixture
def start_worker(tmp_path: Path) -> Iterator[Any]:
    """Starts a worker on a queue of a daemon on a port of its own, which may be started again."""
    from tests.client.ports import free_port  # noqa: PLC0415

    root = tmp_path / "daemon"
    root.mkdir()
    daemon = Daemon(root, port=free_port())
    daemon.start().close()
    workers: list[subprocess.Popen[bytes]] = []

    def start(line: str) -> tuple[Daemon, subprocess.Popen[bytes]]:
        with Client(daemon.url) as client:
            client.create("jobs", type="queue", durability="fsync", lease_ms=2000)
            client.append("jobs", [1, 2, 3])
        workers.append(CommandLine(TOPICS_URL=daemon.url).start("queue", "work", "jobs", "--shell", "--exec", line))
        return daemon, workers[0]

    try:
        yield start
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
        daemon.kill()


def left(client: Client, topic: str) -> tuple[int, int, int]:
    """Jobs that are ready, in flight, delayed."""
    jobs = client.state(topic).queue
    assert jobs is not None
    return jobs.ready, jobs.in_flight, jobs.delayed
