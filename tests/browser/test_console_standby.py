"""The console of a real pair: the owner lists its standby; the standby changes nothing until it takes over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import httpx
import pytest

from tests.browser.chromium import Browser
from tests.browser.console_data import fill
from tests.browser.console_page import Console, console
from tests.end_to_end.test_cold_hangs import until
from tests.end_to_end.test_sigkill import Daemon
from tests.end_to_end.test_standby import pair

TAKEOVER = {"TOPICS_BUCKET_TAKEOVER": "1", "TOPICS_BUCKET_LEASE_MS": "10000"}

VIEWS = (
    ((), "Records per second"),
    (("topics",), "orders"),
    (("topics", "orders"), "Records"),
    (("topics", "orders", "config"), "A standby changes nothing"),
    (("topics", "left"), "The topic has no records."),
    (("topics", "orders", "latest"), "Tag begins with"),
    (("queues",), "shipping"),
    (("queues", "mails"), "Jobs"),
    (("queues", "orders"), "billing"),
    (("queues", "orders", "shipping"), "Jobs"),
    (("consumers",), "warehouse"),
    (("consumers", "orders", "warehouse"), "Last commit"),
    (("routers",), "From topic to topic"),
    (("routers", "orders>archive"), "at least once"),
    (("storage",), "Behind for"),
    (("clients",), "The daemon has no keys"),
)

LOOKS = {"Show", "Pause", "Go on", "Copy", "Copy JSON", "Copy curl", "Keys of the keyboard", "More", "Back"}
"""What the buttons that change nothing are called; and those of rows, which are numbers."""


def url_of(daemon: Daemon) -> str:
    return f"http://127.0.0.1:{daemon.port}"


class Pair(NamedTuple):
    owner: Daemon
    standby: Daemon


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """An owner with something of everything, and a standby that has it too."""
    root = tmp_path_factory.mktemp("pair")
    (root / "bucket").mkdir()
    with pair(root, f"file://{root}/bucket", TAKEOVER) as (owner, standby):
        with httpx.Client(base_url=url_of(owner), timeout=30, trust_env=False) as client:
            fill(client)
            standby.start()
            wanted = client.get("/v0/topics").json()
            with httpx.Client(base_url=url_of(standby), timeout=30, trust_env=False) as reader:
                until(
                    lambda: (
                        [one["topic"] for one in reader.get("/v0/topics").json().get("topics", [])]
                        == [one["topic"] for one in wanted["topics"]]
                    ),
                    "the standby does not get the topics",
                )
        yield Pair(owner, standby)


@pytest.fixture(scope="module")
def shown(browser: Browser, both: Pair) -> Iterator[Console]:
    """The console of the standby."""
    with console(browser, url_of(both.standby)) as shown:
        yield shown


def test_the_owner_lists_itself_and_its_standby(browser: Browser, both: Pair) -> None:
    with console(browser, url_of(both.owner), "storage") as shown:
        shown.page.set_width(1280)
        shown.until("rows('Replicas').length === 2 && rows('Replicas')[1][2] === 'following'", within_s=40)
        owner, standby = shown.rows("Replicas")
        assert (owner[0], owner[1:3]) == (f"{url_of(both.owner)} this one", ["owner", "owns"])
        assert (standby[0], standby[1]) == (url_of(both.standby), "standby")
        assert int(standby[3].replace(",", "")) <= int(owner[3].replace(",", ""))
        assert standby[4].split()[0].rstrip("smh").replace(".", "").isdigit(), standby
        assert standby[5].endswith("ago")
        link = f'a[href="{url_of(both.standby)}/console"]'
        assert shown.page.value_of(f"document.querySelectorAll('{link}').length") == 1
        assert not shown.page.value_of("has('This is a standby')")
        assert shown.violations() == []
        shown.page.set_width(380)
        assert shown.overflow() <= 0


@pytest.mark.parametrize(("parts", "said"), VIEWS, ids=["/".join(parts) or "overview" for parts, _ in VIEWS])
def test_a_standby_says_so_and_offers_nothing_that_it_cannot_do(
    shown: Console, both: Pair, parts: tuple[str, ...], said: str
) -> None:
    page = shown.page
    page.set_width(1280)
    shown.go(*parts)
    shown.until_said(said)
    shown.until_said("This is a standby: it shows what the owner of the bucket has put there, and changes nothing.")
    assert page.value_of(f"document.querySelector('.banners a').href === '{url_of(both.owner)}/console'")
    names = page.value_of(
        "[...document.querySelectorAll('main button:not(.row-link)')]"
        ".map((one) => one.getAttribute('aria-label') ?? one.textContent)"
    )
    assert {name for name in names if not name.strip().replace(",", "").isdigit()} <= LOOKS, names
    assert not page.value_of("[...document.querySelectorAll('.tabs a')].some((one) => /Append|Delete/.test(one.text))")
    assert page.value_of("document.querySelectorAll('.pick, main form :is(input, select):not(:disabled)').length") == (
        page.value_of("document.querySelectorAll('form[role=search] :is(input, select)').length")
    ), "nothing can be chosen or typed but what is looked for"
    assert page.value_of("document.querySelectorAll('.state .command').length") == 0, "no command that would be refused"
    assert shown.violations() == []
    page.set_width(380)
    assert shown.overflow() <= 0
    assert page.complaints == [], "nothing was asked for that it refuses"


@pytest.mark.parametrize("part", ["append", "delete"])
def test_an_address_of_a_form_that_changes_something_shows_the_records(shown: Console, part: str) -> None:
    shown.page.set_width(1280)
    shown.go("topics", "orders", part)
    shown.until("rows('Records').length > 10")
    assert not shown.page.value_of("has('Append a record') || has('Count them')")


def test_a_standby_has_rates_and_live_records_and_lists_itself(shown: Console, both: Pair) -> None:
    shown.page.set_width(1280)
    shown.go("topics", "archive")
    shown.go("topics", "orders")
    shown.until("rows('Records')[0]?.[0] === '150'")
    with httpx.Client(base_url=url_of(both.owner), timeout=30, trust_env=False) as client:
        client.post("/v0/topics/orders", json={"records": [{"data": "news"}]}).raise_for_status()
    shown.until("rows('Records')[0]?.[0] === '151'")
    shown.go()
    shown.until("/requests\\/s|Requests/.test(said()) && /[1-9]/.test(figure('Requests'))")
    shown.go("storage")
    shown.until("rows('Replicas').length === 2 && rows('Replicas')[1][0].endsWith('this one')", within_s=40)
    assert shown.rows("Replicas")[0][:3] == [url_of(both.owner), "owner", "owns"]
    assert shown.page.result_of("figure", "State") == "following"


def test_when_it_takes_over_the_page_offers_everything_without_a_reload(shown: Console, both: Pair) -> None:
    """The last test of this module: the owner is gone then."""
    shown.go("topics")
    shown.page.value_of("globalThis.marker = 'not reloaded'")
    both.owner.kill()
    shown.until("button('Create a topic')", within_s=60)
    shown.until("!has('This is a standby')")
    shown.go("topics", "orders", "append")
    shown.press("Append")
    shown.until_said("Appended as seq")
    assert shown.page.value_of("marker") == "not reloaded"
    shown.page.complaints.clear()
