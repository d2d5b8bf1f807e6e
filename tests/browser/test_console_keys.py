"""The console and keys: who is asked for one, where it is, what is offered to whom; and a keyboard without a mouse."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser.chromium import Browser
from tests.browser.console_page import console
from tests.conformance.client import Client, running

KEYS = "everything,reader:read:orders,operator:read+admin"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with running(tmp_path_factory.mktemp("daemon"), api_keys=KEYS) as client:
        client.headers["authorization"] = "Bearer everything"
        client.append("orders", records=[{"data": 1}])
        client.put_topic("private")
        yield client


def test_the_page_asks_for_a_key_keeps_it_for_the_tab_and_sends_it_in_a_header(
    browser: Browser, client: Client
) -> None:
    with console(browser, client.daemon.url) as shown:
        page = shown.page
        shown.until_said("This daemon asks for a key")
        assert shown.violations() == []
        shown.fill("API key", "wrong")
        shown.press("Use this key")
        shown.until_said("The daemon does not know this key.")
        shown.fill("API key", "everything")
        shown.press("Use this key")
        shown.until_closed()
        shown.go("topics", "orders")
        shown.until("rows('Records').length === 1")
        assert page.value_of("Object.values(sessionStorage).join()") == "everything"
        assert "everything" not in page.value_of("Object.values(localStorage).join() + document.cookie + location.href")
        assert not any("everything" in url or "token=" in url for url in page.requests)
        shown.press("Forget the key")
        shown.until_said("This daemon asks for a key")
        assert page.value_of("sessionStorage.length") == 0


def test_what_a_key_may_not_do_is_not_offered(browser: Browser, client: Client) -> None:
    with console(browser, client.daemon.url, "topics", key="reader") as shown:
        shown.until("rows('Topics').length === 1")
        assert shown.rows("Topics")[0][0] == "orders"
        assert not shown.page.value_of("has('Create a topic') || has('Clients')")
        shown.go("topics", "orders")
        shown.until("rows('Records').length === 1")
        assert not shown.page.value_of("button('Delete') || has('Append') || has('Delete records')")
        shown.go("topics", "orders", "config")
        shown.until_said("This key may not change it.")
        assert not shown.page.value_of("has('Save')")
        shown.go("topics", "private")
        shown.until_said("none of the key's prefixes")
        shown.page.complaints.clear()
    with console(browser, client.daemon.url, "topics", key="operator") as shown:
        shown.until_said("Create a topic")
        assert shown.page.value_of("has('Clients')")
        shown.go("clients")
        shown.until("rows('Keys').length === 3")
        assert shown.violations() == []
        shown.go("topics", "orders")
        shown.until("rows('Records').length === 1")
        assert not shown.page.value_of("button('Delete') || has('Append')")


def test_a_keyboard_is_enough(browser: Browser, client: Client) -> None:
    with console(browser, client.daemon.url, key="everything") as shown:
        page = shown.page
        page.set_width(1280)
        shown.until_said("Records per second")
        page.press("?", modifiers=8)
        shown.until("document.querySelector('dialog')")
        assert shown.violations() == []
        page.press("Escape")
        shown.until_closed()
        page.press("g")
        page.press("t")
        shown.until("location.hash === '#/topics' && rows('Topics').length === 2")
        page.press("/")
        shown.until("document.activeElement === field('Name begins with')")
        page.type("ord")
        shown.until("rows('Topics').length === 1")
        for _ in range(4):
            page.press("Tab")
            if page.value_of("document.activeElement.textContent") == "orders":
                break
        page.press("Enter")
        shown.until("location.hash === '#/topics/orders' && rows('Records').length === 1")
        page.press("p")
        shown.until_said("paused")
        for _ in range(40):
            page.press("Tab")
            if page.value_of("document.activeElement.className") == "row-link":
                break
        page.press("Enter")
        shown.until("document.querySelector('aside')")
        page.value_of("document.querySelector('a.skip').focus()")
        page.press("Enter")
        assert page.value_of("document.activeElement.id") == "main"
