"""Logging: one stream, two forms, the standard library included, and no credentials."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from topics.logs import get_logger, setup_logging


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


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


def test_an_exception_is_one_line() -> None:
    stream = io.StringIO()
    setup_logging("info", "json", stream)
    try:
        raise ValueError("boom")
    except ValueError:
        get_logger("x").exception("failed")
    [line] = lines(stream)
    assert line["event"] == "failed"
    assert "boom" in json.dumps(line)


def test_credentials_are_blanked_wherever_they_got_in() -> None:
    stream = io.StringIO()
    setup_logging("info", "json", stream)
    get_logger("x").info("request", Authorization="Bearer s3cr3t", token="s3cr3t", url="/v0/ws?token=s3cr3t&a=1")
    logging.getLogger("hypercorn.error").error("GET /v0/ws?token=s3cr3t Authorization: Bearer s3cr3t")
    assert "s3cr3t" not in stream.getvalue()
    assert "a=1" in stream.getvalue()


def test_requests_are_not_logged_one_by_one() -> None:
    stream = io.StringIO()
    setup_logging("info", "json", stream)
    logging.getLogger("hypercorn.access").info("GET / 200")
    assert stream.getvalue() == ""
