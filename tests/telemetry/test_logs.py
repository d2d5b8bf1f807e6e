"""Logging: one stream, two forms, the standard library included, no credentials, and nobody waits for it."""

from __future__ import annotations

import errno
import fcntl
import io
import itertools
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio
import trio.testing
from hypothesis import example, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from tests.engine.life import living, refusal
from tests.engine.life import settings as life_settings
from tests.http.conftest import serving
from tests.sched.test_governor import Desk
from tests.simulation.disk import Fault, SimFs
from topics.runtime.background import BackgroundTasks
from topics.sched.governor import PERIOD_S, QUIET_EVERY_S, QUIET_LINES
from topics.telemetry.credentials import hide_credentials
from topics.telemetry.log_lines import MAX_LINE
from topics.telemetry.log_writer import LineHandler
from topics.telemetry.logs import PER_SECOND, EventRateFilter, get_logger, setup_logging

SECRET = "s3cr3t"


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def logged(form: str, *args: Any, **fields: Any) -> str:
    """What one line of a logger looks like."""
    stream = io.StringIO()
    setup_logging("info", form, stream)
    get_logger("x").info(*args, **fields)
    text = stream.getvalue()
    assert text.endswith("\n")
    return text[:-1]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it has not come to pass"
        time.sleep(0.005)


def fail_with(local: object) -> None:
    headers = [(b"authorization", f"Bearer {local}".encode()), (b"x", str(local).encode())]
    raise ValueError(f"boom {len(headers)}")


def test_off_a_terminal_a_line_is_a_json_object() -> None:
    stream = io.StringIO()
    setup_logging("info", "auto", stream)
    get_logger("topics.x").info("wal rotated", shard=1, path="a b")
    [line] = lines(stream)
    assert (
        line.items()
        >= {"event": "wal rotated", "shard": 1, "path": "a b", "level": "info", "logger": "topics.x"}.items()
    )
    assert line["timestamp"].endswith("Z")


def test_what_everybody_looks_for_comes_first() -> None:
    structlog.contextvars.bind_contextvars(request_id="r1")
    line = json.loads(logged("json", "wal rotated", shard=1))
    assert list(line) == ["timestamp", "level", "event", "logger", "request_id", "shard"]


def test_on_a_terminal_a_line_is_for_people() -> None:
    stream = Terminal()
    setup_logging("info", "auto", stream)
    get_logger("topics.x").info("wal rotated", shard=1)
    assert "wal rotated" in stream.getvalue()
    assert not stream.getvalue().startswith("{")


def test_the_form_can_be_chosen() -> None:
    terminal, pipe = Terminal(), io.StringIO()
    setup_logging("info", "json", terminal)
    get_logger("x").info("one")
    setup_logging("info", "human", pipe)
    get_logger("x").info("two")
    assert [line["event"] for line in lines(terminal)] == ["one"]
    assert "two" in pipe.getvalue()
    assert "\x1b" not in pipe.getvalue()


def test_what_is_below_the_level_is_not_logged() -> None:
    stream = io.StringIO()
    setup_logging("warning", "json", stream)
    get_logger("x").info("quiet")
    get_logger("x").warning("loud")
    logging.getLogger("hypercorn.error").info("quiet")
    assert [line["event"] for line in lines(stream)] == ["loud"]


def test_loggers_made_before_the_set_up_follow_it() -> None:
    early = get_logger("topics.early")
    stream = io.StringIO()
    setup_logging("info", "json", stream)
    early.info("hello")
    assert [line["event"] for line in lines(stream)] == ["hello"]


def test_the_standard_library_takes_the_same_way_out() -> None:
    stream = io.StringIO()
    setup_logging("info", "json", stream)
    logging.getLogger("hypercorn.error").error("Running on %s", "127.0.0.1", extra={"pid": 7})
    [line] = lines(stream)
    assert line["event"] == "Running on 127.0.0.1"
    assert (line["logger"], line["level"], line["pid"]) == ("hypercorn.error", "error", 7)


def test_requests_are_not_logged_one_by_one() -> None:
    stream = io.StringIO()
    setup_logging("info", "json", stream)
    logging.getLogger("hypercorn.access").info("GET / 200")
    assert stream.getvalue() == ""


# --- exceptions ------------------------------------------------------------------------------------------------------


def test_an_exception_is_one_line() -> None:
    stream = io.StringIO()
    setup_logging("info", "json", stream)
    try:
        fail_with("x")
    except ValueError:
        get_logger("x").exception("failed")
    [line] = lines(stream)
    assert line["event"] == "failed"
    assert line["exception"].startswith("Traceback")
    assert line["exception"].endswith("ValueError: boom 2")


@pytest.mark.parametrize("form", ["json", "human"])
@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("foreign", [True, False])
def test_tracebacks_show_no_local_variables(form: str, terminal: bool, foreign: bool) -> None:
    stream = Terminal() if terminal else io.StringIO()
    setup_logging("info", form, stream)
    try:
        fail_with(SECRET)
    except ValueError as error:
        if foreign:
            logging.getLogger("quart.app").exception("failed")
        else:
            get_logger("x").error("failed", exc_info=ExceptionGroup("two", [error, OSError(5, "io")]))
    assert "fail_with" in stream.getvalue()
    assert "boom" in stream.getvalue()
    assert SECRET not in stream.getvalue()


def test_a_traceback_on_a_terminal_is_indented_whatever_a_message_holds() -> None:
    stream = io.StringIO()
    setup_logging("info", "human", stream)
    try:
        raise ValueError("boom\n2026-01-01T00:00:00Z [error] a line that nobody has logged \x1b[2J\r!")
    except ValueError:
        get_logger("x").exception("failed")
    first, *rest = stream.getvalue().split("\n")
    assert "failed" in first
    assert rest.pop() == ""
    assert all(line.startswith("    ") for line in rest)
    assert "\x1b" not in stream.getvalue()
    assert "\r" not in stream.getvalue()


def test_a_value_that_cannot_be_shown_costs_its_line_and_nothing_else() -> None:
    class Broken:
        def __repr__(self) -> str:
            raise RuntimeError(SECRET)

    stream = io.StringIO()
    setup_logging("info", "json", stream)
    get_logger("topics.y").info("one", value=Broken())
    get_logger("topics.y").info("two")
    failed, fine = lines(stream)
    assert (failed["event"], failed["logger"], failed["error"]) == ("log_line_failed", "topics.y", "RuntimeError")
    assert fine["event"] == "two"
    assert SECRET not in stream.getvalue()


# --- credentials -----------------------------------------------------------------------------------------------------


def test_credentials_are_blanked_wherever_they_got_in() -> None:
    stream = io.StringIO()
    setup_logging("info", "json", stream)
    get_logger("x").info("request", Authorization="Bearer s3cr3t", token="s3cr3t", url="/v0/ws?token=s3cr3t&a=1")
    logging.getLogger("hypercorn.error").error("GET /v0/ws?token=s3cr3t Authorization: Bearer s3cr3t")
    assert "s3cr3t" not in stream.getvalue()
    assert "a=1" in stream.getvalue()


@pytest.mark.parametrize("form", ["json", "human"])
@pytest.mark.parametrize(
    "value",
    [
        f"token={SECRET}",
        f"TOKEN={SECRET}",
        f"access_token={SECRET}",
        f"token = {SECRET}",
        f"token: {SECRET}",
        f"token%3D{SECRET}%26a",
        f"token%253d{SECRET}",
        f"%74oken={SECRET}",
        f"to%6Ben={SECRET}",
        f"{{'token': '{SECRET}'}}",
        f'{{"token": "{SECRET}"}}',
        json.dumps({"a": json.dumps({"token": SECRET})}),
        f"token='{SECRET}'",
        f'token="{SECRET}"',
        f"Bearer {SECRET}",
        f"bearer%20{SECRET}",
        f"Bearer+{SECRET}",
        f"Bearer x&{SECRET}",
        f'Bearer x"{SECRET}',
        f"Bearer x'{SECRET}",
        f"Bearer x\\{SECRET}",
        f"Authorization: Basic {SECRET}",
        f"authorization={SECRET}",
        f"Authorization: Digest username={SECRET}, realm='{SECRET}'",
        f"Authorization: Bearer:{SECRET}",
        f"Authorization: Bearer x {SECRET}",
        f"Authorization: Bearer\t{SECRET}",
        f"password={SECRET}",
        f"TOPICS_API_KEYS={SECRET}:rw,{SECRET}",
        f"'api_keys': '{SECRET}'",
        {"token": SECRET},
        {"Authorization": SECRET},
        {"a": [{"b": {"API-Key": SECRET, b"token": SECRET}}]},
        [(b"authorization", f"Basic {SECRET}".encode()), ("Token", SECRET)],
        {"scope": {"headers": [(b"host", b"x"), (b"authorization", f"Bearer {SECRET}".encode())]}},
        {"query_string": f"a=1&token={SECRET}".encode()},
        (f"token={SECRET}",),
        {f"token={SECRET}"},
        ValueError(f"GET /?token={SECRET}"),
        f"é \U0001f600 İ token={SECRET}",
    ],
)  # fmt: skip
def test_credentials_have_many_spellings(form: str, value: object) -> None:
    assert SECRET not in logged(form, "seen", value=value)
    assert SECRET not in logged(form, f"seen {value}")


@pytest.mark.parametrize("form", ["json", "human"])
def test_credentials_in_exceptions_are_blanked(form: str) -> None:
    stream = io.StringIO()
    setup_logging("info", form, stream)
    try:
        raise ValueError(f"GET /v0/ws?a=1&token={SECRET}\n{{'authorization': 'Bearer {SECRET}'}}")
    except ValueError:
        get_logger("x").exception("failed")
    assert "a=1&token=(hidden)" in stream.getvalue()
    assert SECRET not in stream.getvalue()


def test_what_is_no_credential_stays() -> None:
    for text in (
        "the tokenizer has read 5 of 7 tokens",
        "token expired",
        "the bearer",
        "TOPICS_API_KEYS: must be a list",
        "100%",
        "a=1&b=2",
    ):
        assert hide_credentials(text) == text
        assert hide_credentials(text, as_json=False) == text
    assert hide_credentials('{"token": 5, "a": {"token": {"b": 1}}}') == '{"token": 5, "a": {"token": {"b": 1}}}'


WORDS = st.sampled_from([
    "token", "=", "Bearer ", ":", '"', "'", "\\", " ", "\n", "{", "}", "[", ",", "%3D", "%74oken", "api_keys", "secret",
    "b'", "é", "\ud800", "\x00", "x", "&", "authorization",
])  # fmt: skip
TEXTS = st.lists(WORDS, max_size=12).map("".join)
VALUES = st.recursive(
    TEXTS | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.fixed_dictionaries({"token": inner, "x": inner}),
    max_leaves=8,
)


def shape(value: Any) -> Any:
    """What is left of a value without its texts."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [shape(inner) for inner in value]
    return str if isinstance(value, str) else value


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(VALUES)
@example(["token\\", 0])
@example(['token\\\\"', "x", 0])
def test_blanking_leaves_valid_json_of_the_same_shape(value: Any) -> None:
    blanked = hide_credentials(json.dumps(value))
    assert "\n" not in blanked
    assert shape(json.loads(blanked)) == shape(value)


def test_a_search_for_credentials_takes_no_time_whatever_is_searched() -> None:
    for piece in ("authorization:", "token= ", "bearer ", "token'", "%74", "secret\\", "api_keys\\\\"):
        text = json.dumps(piece * (60_000 // len(piece)))
        began = time.process_time()
        hide_credentials(text)
        hide_credentials(text, as_json=False)
        assert time.process_time() - began < 2, "it takes time by the square"


# --- the form of a line ----------------------------------------------------------------------------------------------


def test_values_that_json_has_not_are_shown_all_the_same() -> None:
    line = json.loads(
        logged("json", "odd", nan=float("nan"), raw=b"\x00\xff", path=Path("/a"), nested={1: {2: {3}}}, deep=[[[]]])
    )
    assert line["nan"] == "nan"
    assert line["raw"] == r"b'\x00\xff'"
    assert "/a" in line["path"]
    assert line["nested"] == {"1": {"2": [3]}}


def test_a_line_is_ascii_in_json() -> None:
    line = logged("json", "é\u2028\x9b\x7f", value="\ud800\U0001f600")
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line)["event"] == "é\u2028\x9b\x7f"


@pytest.mark.parametrize(
    "evil", ["\x1b[2Jx", "a\r\nb", "\x9bx", "a\u2028b", "\u202egnp.exe", "\x7f", "a\x00", "\ud800"]
)
def test_on_a_terminal_control_characters_are_shown_and_not_obeyed(evil: str) -> None:
    for line in (
        logged("human", "seen", value=evil),
        logged("human", f"seen {evil}"),
        logged("human", "seen", **{evil: 1}),
        logged("human", "seen", nested=[{"a": evil}]),
    ):
        assert line.isprintable(), line
        assert "seen" in line


def test_a_list_of_steps_is_readable_on_a_terminal() -> None:
    assert "steps=['a', 'b'] text='two words'" in logged("human", "seen", steps=["a", "b"], text="two words")


@pytest.mark.parametrize(
    "fields",
    [
        {"value": "x" * 1_000_000},
        {"value": "\x1b" * 100_000},
        {"value": ["x" * 100] * 1000},
        {f"field{i}": "x" * 100 for i in range(1000)},
        {"small": 1, "a": "a" * 20_000, "b": {"b": "b" * 20_000}},
    ],
)
@pytest.mark.parametrize("form", ["json", "human"])
def test_a_line_has_an_end(form: str, fields: dict[str, Any]) -> None:
    line = logged(form, "long", **fields)
    assert len(line) <= MAX_LINE
    assert "long" in line
    assert "cut" in line
    if form == "json":
        event = json.loads(line)
        assert event["event"] == "long"
        assert event["cut"] > MAX_LINE
        assert event.get("small", 1) == 1


def test_a_cut_does_not_undo_the_blanking() -> None:
    for length in range(MAX_LINE - 200, MAX_LINE + 100, 7):
        value = "x" * (length // 2) + f" token={SECRET} " + "y" * (length // 2)
        assert SECRET not in logged("json", "long", value=value)
        assert SECRET not in logged("human", "long", value=value)


def test_of_a_long_traceback_both_ends_are_kept() -> None:
    stream = io.StringIO()
    setup_logging("info", "json", stream)
    try:
        raise ValueError("x" * 50_000 + " the end")
    except ValueError:
        get_logger("x").exception("failed")
    [line] = lines(stream)
    assert line["exception"].startswith("Traceback")
    assert line["exception"].endswith("the end")


# --- storms ----------------------------------------------------------------------------------------------------------


def test_what_clients_provoke_is_logged_so_often_a_second_and_the_rest_is_counted() -> None:
    now = 100.0
    sparing = EventRateFilter(lambda: now)

    def passes(logger: str, event: str | dict[str, Any], level: int = logging.WARNING) -> bool:
        return sparing.filter(logging.LogRecord(logger, level, "file", 1, event, (), None))

    for _ in range(100):
        assert passes("topics.storage.recovery.recovered_state", {"event": "records_damaged"})
        assert passes("topics.http.gate", {"event": "request"}, logging.DEBUG)
    for logger in ("topics.http.connections.server", "hypercorn.error", "topics"):
        assert [passes(logger, {"event": "failed"}) for _ in range(100)].count(True) == PER_SECOND
    assert passes("topics.http.connections.server", {"event": "another"})
    now += 1
    event: dict[str, Any] = {"event": "failed"}
    assert passes("topics.http.connections.server", event)
    assert event["unlogged"] == 100 - PER_SECOND
    now += 1
    event = {"event": "failed"}
    assert passes("topics.http.connections.server", event)
    assert "unlogged" not in event


def test_lines_of_the_framework_are_counted_by_their_place_and_not_by_their_text() -> None:
    stream = io.StringIO()
    setup_logging("info", "json", stream)
    for number in range(100):
        logging.getLogger("quart.app").error("Exception on request GET /%d", number)
    assert len(lines(stream)) <= 2 * PER_SECOND


# --- the way out -----------------------------------------------------------------------------------------------------


@pytest.fixture
def pipe() -> Iterator[tuple[int, io.TextIOWrapper]]:
    """A pipe of 4 KiB that nobody reads, and its other end as a stream."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    with os.fdopen(writer, "w") as stream:
        yield reader, stream
        os.close(reader)


def read_lines(fd: int, enough: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
    data = b""
    deadline = time.monotonic() + 30
    while not data.endswith(b"\n") or not enough([json.loads(line) for line in data.splitlines()]):
        assert time.monotonic() < deadline
        data += os.read(fd, 1 << 20)
    return [json.loads(line) for line in data.splitlines()]


def test_nobody_waits_for_a_log_that_is_not_read_and_what_is_dropped_is_counted(
    pipe: tuple[int, io.TextIOWrapper], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("topics.telemetry.log_writer.MAX_WAITING", 256 << 10)
    reader, stream = pipe
    setup_logging("info", "json", stream)
    [handler] = logging.getLogger().handlers
    assert isinstance(handler, LineHandler)
    log = get_logger("x")
    count = 0
    began = time.monotonic()
    while not handler._dropped:
        log.info("line", number=count, filling="x" * 15_000)
        count += 1
    assert count * 15_000 > 256 << 10
    log.info("line", number=count, filling="")
    assert time.monotonic() - began < 20
    seen = read_lines(reader, lambda seen: seen[-1]["event"] == "log_lines_dropped")
    *written, last = seen
    assert [line["number"] for line in written] == list(range(count - 1))
    assert (last["level"], last["count"]) == ("error", 2)
    log.info("afterwards")
    assert read_lines(reader, lambda seen: True)[-1]["event"] == "afterwards"
    handler.flush()
    handler.close()


def test_lines_of_many_threads_are_whole(pipe: tuple[int, io.TextIOWrapper]) -> None:
    reader, stream = pipe
    os.set_blocking(stream.fileno(), False)  # as another process that has the terminal may have made it
    setup_logging("info", "json", stream)

    def write(thread: int) -> None:
        for number in range(50):
            get_logger("x").info("line", thread=thread, number=number, filling="x" * (number * 7))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    seen = read_lines(reader, lambda seen: len(seen) == 200)
    for thread in threads:
        thread.join()
    for number in range(4):
        assert [line["number"] for line in seen if line["thread"] == number] == list(range(50))
    logging.getLogger().handlers[0].close()


def test_a_log_that_cannot_be_written_harms_nobody() -> None:
    with open("/dev/full", "w") as full:
        setup_logging("info", "json", full)
        get_logger("x").info("line")
        [handler] = logging.getLogger().handlers
        handler.flush()
        get_logger("x").info("line")
        handler.flush()
        handler.close()


PROGRAM = """
import sys, threading, warnings
from topics.telemetry.logs import get_logger, setup_logging
setup_logging("info", "json")
log = get_logger("program")
class Leaky:
    def __del__(self):
        token = "s3cr3t"
        raise OSError("in a finalizer")
def run():
    raise ValueError("in a thread")
warnings.warn("odd", UserWarning)
leaky = Leaky()
del leaky
thread = threading.Thread(target=run, name="helper")
thread.start()
thread.join()
for number in range(500):
    log.info("line", number=number)
raise RuntimeError("the end")
"""


@pytest.mark.slow
def test_nothing_gets_past_the_log_and_nothing_is_lost_at_the_end() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    seen = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["event"] for line in seen] == [
        "python_warning", "uncaught_in_finalizer", "uncaught_in_thread", *["line"] * 500, "uncaught",
    ]  # fmt: skip
    assert (seen[0]["message"], seen[2]["thread"], seen[-1]["level"]) == ("odd", "helper", "critical")
    assert "in a finalizer" in seen[1]["exception"]
    assert "the end" in seen[-1]["exception"]
    assert SECRET not in done.stderr


@pytest.mark.slow
def test_a_process_ends_although_nobody_reads_its_log() -> None:
    program = (
        "from topics.telemetry.logs import get_logger, setup_logging\n"
        "setup_logging('info', 'json')\n"
        "for i in range(100): get_logger('x').info('line', filling='x' * 10000)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE) as process:
        assert process.wait(60) == 0


# --- whose line it is ------------------------------------------------------------------------------------------------


@pytest.mark.trio
async def test_what_a_request_causes_to_be_logged_has_its_id() -> None:
    """Also what is logged by the framework, and by the tasks that the request starts."""
    stream = io.StringIO()
    setup_logging("info", "json", stream)

    async def fail() -> None:
        async def in_a_task() -> None:
            get_logger("topics.x").info("in_a_task")
            logging.getLogger("quart.app").warning("of the framework")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(in_a_task)
        raise ZeroDivisionError("oh")

    async with serving() as served, served.client() as client:
        await client.put("/v0/topics/a")
        served.engine.before = fail
        calls = [("PUT", "/v0/topics/a"), ("GET", "/v0/topics/a/diff"), ("GET", "/v0/topics/a/diff?wait_ms=9")]
        for number, (method, path) in enumerate(calls):
            stream.truncate(stream.seek(0))
            answer = await client.request(method, path, headers={"x-request-id": f"mine-{number}"})
            assert answer.status_code == 500
            assert [(line["event"], line["request_id"]) for line in lines(stream)] == [
                ("in_a_task", f"mine-{number}"),
                ("of the framework", f"mine-{number}"),
                ("request_failed", f"mine-{number}"),
            ]


@pytest.mark.trio
async def test_what_outlives_a_request_does_not_have_its_id(autojump_clock: Any) -> None:
    stream = io.StringIO()
    setup_logging("info", "json", stream)
    background = BackgroundTasks()

    async def work(what: str) -> None:
        await trio.sleep(1)
        get_logger("topics.x").info(what)

    async with trio.open_nursery() as nursery:
        await nursery.start(background.run)
        structlog.contextvars.bind_contextvars(request_id="mine")
        background.start_soon(work, "goes_on")
        await background.finish(lambda: work("for_the_request"))
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert {line["event"]: line.get("request_id") for line in lines(stream)} == {
        "goes_on": None,
        "for_the_request": "mine",
    }


# --- changes of state ------------------------------------------------------------------------------------------------


@pytest.mark.trio
async def test_a_failed_shard_is_told_once_with_what_follows_from_it(autojump_clock: Any) -> None:
    fs = SimFs()
    with capture_logs() as logs:
        async with living(fs=fs) as life:
            await life.put("t", durability="fsync")
            fs.inject(Fault(error=errno.EIO, name="fdatasync", path="*.log", times=None))
            for number in range(5):
                await refusal(life.append("t", number))
                await refusal(life.put("t", cap_records=number + 1))
            await trio.sleep(60)
    told = [line for line in logs if line["log_level"] == "error"]
    assert [line["event"] for line in told] == ["wal_shard_read_only"]
    assert told[0]["shard"] == 0
    assert told[0]["file"].endswith(".log")
    assert "refused" in told[0]["consequence"]


@pytest.mark.trio
async def test_space_that_comes_and_goes_at_the_limit_is_told_now_and_then(autojump_clock: Any) -> None:
    fs = SimFs(capacity=8 << 20)
    with capture_logs() as logs:
        async with living(life_settings(min_free_bytes=4 << 20), fs=fs) as life:
            for _ in range(40):
                ballast = fs.open("/ballast", create=True)
                ballast.truncate(3 << 20)
                ballast.close()
                await trio.sleep(0.7)
                assert life.engine.store.space.shortage, life.fs.free_bytes("/")
                fs.unlink("/ballast")
                await trio.sleep(0.7)
                assert not life.engine.store.space.shortage
            await trio.sleep(20)
            fs.inject(Fault(error=errno.EIO, name="free_bytes", times=20))
            await trio.sleep(30)
    told = [line["event"] for line in logs if "disk" in line["event"] or "space" in line["event"]]
    *flapping, unknown, known = told
    assert (unknown, known) == ("free_space_unknown", "free_space_known_again")
    assert flapping[0] == "disk_nearly_full"
    assert flapping[-1] == "disk_has_room_again", "what is told last is how it is"
    assert len(flapping) <= 7
    assert all(one != other for one, other in itertools.pairwise(flapping))


@pytest.mark.slow
@pytest.mark.trio
async def test_pressure_that_comes_and_goes_is_told_now_and_then(autojump_clock: Any) -> None:
    desk = Desk()
    with capture_logs() as logs:
        for _ in range(200):
            desk.wait(64)
            await desk.tick()
            desk.serve_all()
            await desk.tick()
        desk.wait(32 * 50)
        await desk.tick(15)
        desk.serve_all()
        await desk.tick(200)
    assert len(logs) <= QUIET_LINES + 200 * 2 * PERIOD_S / QUIET_EVERY_S + 4
    on: set[str] = set()
    for line in logs:
        assert set(line["left"]) <= on
        assert not set(line["taken"]) & on
        on = (on - set(line["left"])) | set(line["taken"])
        assert on == set(line["steps"])
        harmful = bool({"pausing", "saturated"} & {*line["left"], *line["taken"]})
        assert line["log_level"] == ("warning" if harmful else "info")
    assert on == set(), "what is told last is how it is"
    assert any("pausing" in line["taken"] for line in logs)
