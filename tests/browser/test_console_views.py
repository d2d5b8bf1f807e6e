"""Each view of the console: what it shows, for everybody, on every screen."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser.chromium import Browser
from tests.browser.console_data import LONG, fill
from tests.browser.console_page import Console, console
from tests.conformance.client import Client, running

VIEWS = [
    ((), "Overview", "Records per second"),
    (("topics",), "Topics", "orders"),
    (("topics", "orders"), "orders", "log only"),
    (("topics", "orders", "config"), "orders", "Idempotency window"),
    (("topics", "orders", "latest"), "orders", "Tag begins with"),
    (("topics", "ledger", "evidence"), "ledger", "Covers"),
    (("topics", "orders", "append"), "orders", "Append a record"),
    (("topics", "orders", "delete"), "orders", "Count them"),
    (("queues",), "Queues and groups", "shipping"),
    (("queues", "mails"), "mails", "Dead letters in mails.dead"),
    (("queues", "orders"), "orders", "billing"),
    (("queues", "orders", "shipping"), "orders / shipping", "Jobs"),
    (("consumers",), "Consumers", "warehouse"),
    (("consumers", "orders", "warehouse"), "orders / warehouse", "Last commit"),
    (("routers",), "Routers", "From topic to topic"),
    (("routers", "orders>archive"), "orders>archive", "at least once"),
    (("storage",), "Storage", "Checkpoints"),
    (("clients",), "Clients", "The daemon has no keys"),
]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with running(tmp_path_factory.mktemp("daemon")) as client:
        fill(client)
        client.put("/v0/topics/ledger", json={"durability": "fsync", "evidence": True}).raise_for_status()
        client.post("/v0/topics/ledger", json={"records": [{"data": 1}, {"data": 2}]}).raise_for_status()
        yield client


@pytest.fixture(scope="module")
def shown(browser: Browser, client: Client) -> Iterator[Console]:
    """One page for all views: a person goes from view to view, too."""
    with console(browser, client.daemon.url) as shown:
        yield shown


@pytest.mark.parametrize(
    ("parts", "title", "said"), VIEWS, ids=["/".join(parts) or "overview" for parts, _, _ in VIEWS]
)
def test_a_view_is_for_everybody(shown: Console, parts: tuple[str, ...], title: str, said: str) -> None:
    """Its title is told and has the focus, axe-core finds nothing in light and dark colours, 380 pixels are enough, and
    the browser complains of nothing."""
    page = shown.page
    page.set_width(1280)
    shown.go(*parts)
    shown.until_said(said)
    shown.until(f"document.title.includes({title!r})")
    assert page.value_of("document.activeElement.id") == "title" or not parts, (
        "the first view is the only one that nobody went to"
    )
    assert shown.violations() == []
    page.set_dark(dark=True)
    assert shown.violations("color-contrast") == [], "dark"
    page.set_dark(dark=False)
    page.set_width(380)
    assert shown.overflow() <= 0
    assert page.complaints == []


@pytest.mark.parametrize("parts", [("clients",), ("topics", "orders", "delete")])
def test_a_narrow_screen_shows_which_view_is_open(browser: Browser, client: Client, parts: tuple[str, ...]) -> None:
    """The rows of links are scrolled there, by an address that is opened and by one that somebody goes to."""
    links = "[...document.querySelectorAll('[aria-current]')]"
    inside = f"{links}.every((one) => one.getBoundingClientRect().right <= innerWidth)"
    with console(browser, client.daemon.url) as shown:
        shown.page.set_width(380)
        shown.go(*parts)
        shown.until(f"document.querySelectorAll('[aria-current]').length === {min(len(parts), 2)} && {inside}")
        shown.page.value_of("location.reload()")
        shown.until("document.querySelector('h1') && document.querySelector('[aria-current]')")
        shown.until(f"document.querySelectorAll('[aria-current]').length === {min(len(parts), 2)} && {inside}")


def test_the_page_asks_its_own_daemon_for_all_it_needs_and_nobody_else(browser: Browser, client: Client) -> None:
    with console(browser, client.daemon.url) as shown:
        shown.until_said("Records per second")
        assert {url.split("/", 3)[2] for url in shown.page.requests} == {client.daemon.url.split("/")[2]}
        assert shown.page.complaints == []
        assert shown.page.value_of("document.querySelectorAll('[style]:not(main *)').length") == 0


def test_the_topics_have_their_figures_and_can_be_searched_and_sorted(shown: Console) -> None:
    shown.page.set_width(1280)
    shown.go("topics")
    shown.until("rows('Topics').length === 9")
    by_name = {row[0]: row for row in shown.rows("Topics")}
    assert list(by_name) == sorted(by_name)
    assert by_name["orders"][3] == "150"
    assert by_name["mails"][1].split() == ["queue", "disk"]
    assert LONG in by_name
    shown.fill("Name begins with", "ord")
    shown.until("rows('Topics').length === 1")
    assert shown.rows("Topics")[0][0] == "orders"
    shown.fill("Name begins with", "zzz")
    shown.until_said("No topic begins with zzz")
    shown.fill("Name begins with", "")
    shown.fill("Order", "records")
    shown.until("rows('Topics')[1]?.[3] === '150'")
    counts = [int(row[3].replace(",", "")) for row in shown.rows("Topics")]
    assert counts == sorted(counts, reverse=True)


def test_a_topic_shows_what_is_gone_and_what_is_live(shown: Console) -> None:
    shown.go("topics", "capped")
    shown.until("figure('Records') === '10'")
    assert shown.page.result_of("figure", "First seq") == "41"
    assert shown.page.value_of("element('figcaption li', 'evicted').textContent") == "evicted 40"
    shown.until_said("Seqs 1 to 40 are gone: evicted by a cap.")


def test_records_are_filtered_by_the_grammar_of_the_command_line(shown: Console) -> None:
    shown.page.set_width(1280)
    shown.go("topics", "orders")
    shown.until("rows('Records').length > 10")
    newest = shown.rows("Records")[0]
    assert newest[0] == "150"
    assert newest[2:4] == ["eu:de", "shop-2"]
    shown.fill("Filter", 'tag = "us:ny" and data./order <= 1004')
    shown.press("Show")
    shown.until("rows('Records').length === 3")
    assert [row[0] for row in shown.rows("Records")] == ["5", "3", "1"]
    assert "filter=" in shown.page.value_of("location.hash")
    shown.fill("Filter", "tag = ")
    shown.press("Show")
    shown.until_said("at character 7, the end: expected a string")


def test_records_are_shown_from_a_seq_and_from_a_time(shown: Console, client: Client) -> None:
    shown.go("topics", "archive")
    shown.go("topics", "orders")
    shown.fill("From", "seq")
    shown.fill("Seq", "42")
    shown.press("Show")
    shown.until("rows('Records')[0]?.[0] === '42'")
    shown.fill("From", "time")
    shown.fill("Time", "2001-01-01T00:00")
    shown.press("Show")
    shown.until("rows('Records')[0]?.[0] === '1'")


def test_a_record_is_shown_in_detail(shown: Console) -> None:
    shown.go("topics", "archive")
    shown.until("rows('Records').length > 10")
    shown.press("150")
    shown.until("document.querySelector('aside')")
    detail = shown.page.value_of("document.querySelector('aside').innerText")
    for text in ("Seq 150", "eu:de", "shop-2", '"trace"', '"customer"', "9876543359"):
        assert text in detail, text
    assert shown.violations() == []
    shown.press("Close the record")
    shown.until("!document.querySelector('aside')")


def test_jobs_have_their_states_and_their_history(shown: Console) -> None:
    shown.go("queues", "mails")
    shown.until("rows('Jobs').length === 18")
    shown.fill("State", "delayed")
    shown.until("rows('Jobs').length === 2 && rows('Jobs')[0][1] === 'delayed'")
    shown.press(shown.rows("Jobs")[0][0])
    shown.until_said("451 mailbox busy")
    shown.fill("State", "in_flight")
    shown.until("rows('Jobs').length === 2 && rows('Jobs')[0][1] === 'in flight'")
    shown.press(shown.rows("Jobs")[0][0])
    shown.until_said("held by worker-1")
    shown.fill("State", "dead")
    shown.until("rows('Jobs').length === 2 && rows('Jobs')[0][1] === 'dead'")
    shown.press(shown.rows("Jobs")[0][0])
    shown.until_said("550 no such user")


def test_routers_are_drawn_and_cycles_are_marked(shown: Console) -> None:
    shown.go("routers")
    shown.until("document.querySelectorAll('.edge').length === 3")
    assert shown.page.value_of("document.querySelectorAll('.node').length") == 4
    assert "cycle" in shown.page.value_of("document.querySelector('.edge.cycle').textContent")
    assert len(shown.rows("Routers")) == 3


def test_clients_are_listed_with_what_they_get(shown: Console, client: Client) -> None:
    with client.stream("GET", "/v0/topics/orders/stream?tail=true"):
        shown.go("clients")
        shown.until("rows('Streams, sockets and exports').length === 1")
        (row,) = shown.rows("Streams, sockets and exports")
        assert row[:3] == ["stream", "orders", "0"]
        assert shown.violations() == []


def test_a_view_that_does_not_exist_and_a_topic_that_does_not_exist(shown: Console) -> None:
    shown.go("no-such-view")
    shown.until("document.querySelector('h1').textContent === 'Overview'")
    shown.go("topics", "no-such-topic")
    shown.until_said("'no-such-topic' does not exist")
    shown.page.complaints.clear()
