"""`docs/client.md` is run from top to bottom, in one program, and prints what it shows."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import topics.client
from tests.client.ports import free_port
from tests.conformance.client import Daemon
from topics.client import TopicsError

PAGE = Path(__file__).resolve().parents[2] / "docs" / "client.md"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path, port=free_port())
    try:
        daemon.start().close()
        yield daemon
    finally:
        daemon.kill()


def blocks() -> list[tuple[str, str]]:
    """Language and text of each block; every fence of the page is one."""
    text = PAGE.read_text()
    found = FENCE.findall(text)
    assert text.count("```") == 2 * len(found)
    return found


@pytest.mark.slow
def test_the_guide_prints_what_it_shows(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICS_URL", daemon.url)
    monkeypatch.delenv("TOPICS_TOKEN", raising=False)
    names: dict[str, Any] = {}
    printed, ran = "", ""
    for language, text in blocks():
        if language == "":
            assert printed == text, ran
            printed = ""
            continue
        assert printed == "", f"{ran}prints more than the page shows"
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(text, PAGE.name, "exec"), names)
        printed, ran = output.getvalue(), text
    assert printed == ""


def test_every_block_is_python_or_what_it_prints() -> None:
    languages = [language for language, _ in blocks()]
    assert set(languages) == {"python", ""}
    assert languages[0] == "python"
    assert ("", "") not in pairwise(languages)


def test_what_can_be_caught_and_made_is_in_the_guide() -> None:
    names = set(re.findall(r"\b[A-Z][A-Za-z]+\b", PAGE.read_text()))
    errors = {name for name in topics.client.__all__ if issubclass(getattr(topics.client, name), TopicsError)}
    assert errors - {"ProducerClosed"} <= names
    assert {
        "Client",
        "Producer",
        "Worker",
        "AsyncClient",
        "AsyncProducer",
        "AsyncWorker",
        "NewRecord",
        "Retry",
    } <= names
