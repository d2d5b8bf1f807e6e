"""What the tests of this directory stand on: a page at the daemon's origin, and a wire that can be cut."""

from __future__ import annotations

import pytest

from tests.browser.chromium import Browser
from tests.browser.wire import Wire
from tests.conformance.client import Client

TRY = "metrics().then(text => text.length > 2000, error => error.name)"


def test_a_page_of_the_test_suite_is_at_the_origin_of_the_daemon(browser: Browser, client: Client) -> None:
    with browser.page(client.daemon.url, "plain.html") as page:
        assert page.value_of("health()")["status"] == "ok"
        assert page.value_of("document.title") == "A page of the test suite"
    assert client.get("/test-page/plain.html").status_code == 404, "the daemon knows nothing of it"


def test_a_page_reaches_nothing_but_loopback(browser: Browser, client: Client) -> None:
    with browser.page(client.daemon.url, "plain.html") as page:
        assert (
            page.value_of("fetch('http://example.com/', {mode: 'no-cors'}).catch(error => error.name)") == "TypeError"
        )


def test_what_goes_wrong_in_a_page_fails_the_test(browser: Browser, client: Client) -> None:
    with browser.page(client.daemon.url, "plain.html") as page:
        page.value_of("setTimeout(() => { throw new Error('a mistake in the page') }, 0) && null")
        with pytest.raises(AssertionError, match="a mistake in the page"):
            page.until("false", within_s=5)


def test_a_wire_can_be_cut_refused_and_restored(browser: Browser, wire: Wire) -> None:
    with browser.page(wire.origin, "plain.html") as page:
        assert page.value_of(TRY) is True
        wire.cut()
        assert page.value_of(TRY) is True, "a new connection is possible at once"
        wire.refuse()
        assert page.value_of(TRY) == "TypeError"
        wire.restore()
        assert page.value_of(TRY) is True
        wire.cut_after(1000)
        assert page.value_of(TRY) == "TypeError"
        assert wire.is_cut
        assert page.value_of(TRY) is True
