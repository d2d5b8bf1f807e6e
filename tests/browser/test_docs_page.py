"""`GET /v0/docs` as a person sees it."""

from __future__ import annotations

from tests.browser.chromium import Browser
from tests.conformance.client import Client

LINKS = "[...document.querySelectorAll('a[href^=\"#\"]')].map(link => link.getAttribute('href').slice(1))"


def test_the_page_is_shown_by_itself_and_asks_for_nothing_else(browser: Browser, client: Client) -> None:
    url = f"{client.daemon.url}/v0/docs"
    with browser.visit(url) as page:
        assert page.value_of("document.querySelector('h1').textContent.trim()").startswith("topics")
        for path in client.get("/v0/openapi.json").json()["paths"]:
            assert page.value_of(f"document.body.innerText.includes({path!r})"), path
        assert page.value_of("getComputedStyle(document.body).fontFamily.includes('sans-serif')"), "its style counts"
        assert page.value_of("document.scripts.length") == 0
        assert [other for other in page.requests if other != url and not other.endswith("/favicon.ico")] == []
        assert [text for text in page.complaints if "favicon" not in text] == []


def test_every_link_of_its_contents_leads_somewhere(browser: Browser, client: Client) -> None:
    with browser.visit(f"{client.daemon.url}/v0/docs") as page:
        names = page.value_of(LINKS)
        assert len(names) > 25
        assert page.value_of(f"{names!r}.filter(name => document.getElementById(name) === null)") == []


def test_it_fits_a_narrow_screen(browser: Browser, client: Client) -> None:
    with browser.visit(f"{client.daemon.url}/v0/docs") as page:
        page.set_width(390)
        assert page.value_of("document.documentElement.scrollWidth") <= 390
