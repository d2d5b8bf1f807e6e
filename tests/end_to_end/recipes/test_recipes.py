"""The recipes, the tour and the README do what they show, run exactly as printed."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from typing import Final

import pytest

from tests.client.ports import free_port
from tests.conformance.client import Daemon
from tests.end_to_end.recipes.terminals import (
    ANOTHER,
    BLOCKS,
    PAGE,
    README,
    RECIPES,
    STREAMED,
    TOUR,
    WHOLE,
    Block,
    Place,
    answers,
    data_of,
    indented,
    is_streamed_line,
    streamed,
)
from topics.client import Client

pytestmark = pytest.mark.slow

NOT_RUN: Final = {
    README: {
        "scripts/serve ": "makes an environment from the index and runs until it is stopped; the test has a daemon",
    },
    TOUR: {
        "scripts/copy topics-data backup\n": "needs the directory of a daemon: test_consistent_copy.py",
        "python -m topics.spark load": "needs Spark: test_pipeline_demo.py, tests/spark",
    },
}
"""Indented commands of these pages that the test here does not run, by their beginnings, and why."""


def test_every_block_says_what_it_is() -> None:
    assert len(RECIPES) == 22
    for title, blocks in RECIPES.items():
        assert {block.language for block in blocks} <= {"sh", "python", ""}, title
        assert all(block.file for block in blocks if block.language == "python")
        assert any(block.language == "" for block in blocks), f"{title} shows nothing"
    assert PAGE.read_text().count("```") == 2 * sum(map(len, RECIPES.values()))


@pytest.mark.parametrize(
    "title",
    [
        "Job queue",
        "Redrive after a fix",
        "In order for each customer",
        "Priority lanes",
        "Back-pressure by limits",
        "Publish and subscribe",
        "Audit log that an outsider can check",
        "Redaction",
        "Outbox",
        "Log shipping",
        "Read model",
        "Feature flags",
        "A cache that rebuilds itself",
        "Event-sourced aggregate",
        "One leader",
        "Unique user names",
        "Outbox without an outbox",
        "Backfill",
        "Fan-out to services",
    ],
)
def test_a_recipe_does_what_it_shows(title: str, daemon: Daemon, open_place: Callable[..., Place]) -> None:
    open_place(title, daemon.url).walk()


def test_the_audit_log_does_what_it_shows(open_place: Callable[..., Place]) -> None:
    """Its daemon is one of the page's own blocks."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    place = open_place("Audit log", f"http://127.0.0.1:{free_port()}", AUDIT_PORT=str(port))
    place.walk()
    keys = re.findall(r"TOPICS_TOKEN=(\S+)", "".join(block.text for block in place.blocks))
    setup, shop = keys[0], keys[1]
    assert place.type(f"TOPICS_TOKEN={shop} topics read audit") == (4, "")

    # What is in it is on the disk.
    (serve,) = place._jobs
    place.kill(serve)
    place.start(place.sh("topics serve"))
    place.until(lambda: answers(url))
    code, printed = place.type(place.sh("topics read audit"))
    assert code == 0
    assert len(printed.splitlines()) == 2

    # When it is full, callers hear of it before they do anything.
    assert place.type(f"TOPICS_TOKEN={setup} topics create audit --cap-records 2 > set.out")[0] == 0
    assert place.type("python audit.py ann 'deletes everything'")[0] == 1
    assert "TopicFull" in place.log()


def test_the_mirror_does_what_it_shows(daemon: Daemon, open_place: Callable[..., Place]) -> None:
    port = free_port()
    b = f"http://127.0.0.1:{port}"
    place = open_place("Multi-node mirror", daemon.url, A=daemon.url, B=b, B_PORT=str(port))
    place.walk()
    with Client(daemon.url) as at_a, Client(b) as at_b:
        place.until(lambda: sorted(data_of(at_b, "notes")) == ["from A", "from B"])
        assert sorted(data_of(at_a, "notes")) == ["from A", "from B"]


def test_the_readme_the_tour_and_all_recipes_do_what_they_show_on_one_daemon(
    daemons: list[Daemon], open_place: Callable[..., Place]
) -> None:
    """As a person does who reads from the beginning. Where the tour says `kill -9`, the daemon is killed."""
    daemon = daemons[0]
    locked, audit, b = free_port(), free_port(), free_port()
    own = {"LOCKED_PORT": str(locked), "AUDIT_PORT": str(audit), "B_PORT": str(b), "A": daemon.url}
    readme = open_place(README, daemon.url, **own)
    readme.walk()
    readme.until(lambda: shows_what_its_streams_print(readme, README))

    tour = open_place(TOUR, daemon.url, **own)
    blocks = tour.blocks
    watched = 1 + index_of(blocks, lambda block: block.text.startswith(ANOTHER) and "/stream" in block.text)
    killed = index_of(blocks, lambda block: block.text == 'curl -sS "$url/topics/purchases/diff"\n')
    tour.blocks = blocks[:watched]
    tour.walk()
    tour.until(lambda: shows_what_its_streams_print(tour, TOUR))  # what comes next deletes what it shows
    tour.blocks = blocks[watched:killed]
    tour.walk()
    daemon.end(signal.SIGKILL)
    daemon.start().close()
    tour.blocks = blocks[killed:]
    tour.walk()
    for title in RECIPES:
        open_place(title, daemon.url, B=f"http://127.0.0.1:{b}", **own).walk()


def index_of(blocks: list[Block], is_it: Callable[[Block], bool]) -> int:
    """Where the one block of a page is that has this property."""
    (found,) = [index for index, block in enumerate(blocks) if is_it(block)]
    return found


def shows_what_its_streams_print(place: Place, title: str) -> bool:
    """Return True if other terminals have printed every line that the page shows of a stream."""
    shown, printed = streamed(title), place.printed()
    assert any(line.startswith("data: ") for line in shown), f"{title} shows no stream"
    return all(any(is_streamed_line(line, wanted) for line in printed) for wanted in shown)


@pytest.mark.parametrize("title", list(WHOLE))
def test_every_block_of_a_whole_page_is_run_or_has_a_reason_not_to_be(title: str) -> None:
    """Fenced blocks are run, all of them. Indented ones are shown by a stream, or are named with their reason."""
    assert {block.language for block in BLOCKS[title]} == {README: {"sh", ""}, TOUR: {"sh", "python", ""}}[title]
    assert WHOLE[title].count("```") == 2 * len(BLOCKS[title])
    commands = [text.strip() for text in indented(title) if not STREAMED.match(text)]
    assert len(commands) == len(NOT_RUN[title])
    assert all(text.startswith(known.strip()) for text, known in zip(commands, NOT_RUN[title], strict=True))


def test_the_pages_have_no_topic_in_common() -> None:
    """All of them can be tried on one daemon: nobody meets what an earlier page has left behind."""
    named = re.compile(r"/topics/([a-z][a-z-]*)|topics (?:create|append|tail -f|queue work) ([a-z][a-z-]*)")
    topics = {
        title: {"".join(found) for block in blocks for found in named.findall(block.text)}
        for title, blocks in BLOCKS.items()
    }
    assert {"readings"} <= topics[README]
    assert {"purchases", "recent", "sales", "letters", "visits"} <= topics[TOUR]
    for title, mine in topics.items():
        for other, theirs in topics.items():
            assert title == other or not mine & theirs, (title, other)
