"""The console as a person and as axe-core see it, and what the tests do in it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.browser.chromium import Browser, Page

AXE = Path(__file__).parent / "vendor" / "axe.js"

HELPERS = (Path(__file__).parent / "console_helpers.js").read_text()


class Console:
    """The console in one page."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url

    def go(self, *parts: str, key: str | None = None) -> None:
        """Go to a view by its address; at the first visit with a key, if one is given."""
        address = "/".join(quote(part, safe="") for part in parts)
        if not self.page.value_of("location.pathname.endsWith('/console')"):
            self.page.go(f"{self.url}/console#/{address}")
            if key is not None:
                self.page.value_of(f"sessionStorage.setItem('topics.key', {json.dumps(key)})")
                self.page.value_of("location.reload()")
                self.page.until("document.readyState === 'complete'")
            self.page.value_of(HELPERS)
        else:
            self.page.value_of(f"location.hash = '#/{address}'")
        self.page.until("document.querySelector('h1, dialog') && !has('Asking the daemon')")
        self.page.until(
            "document.querySelector('main').dataset.address === location.hash.replace('#/', '').split('?')[0]"
        )

    def until(self, condition: str, *, within_s: float = 20) -> None:
        self.page.until(condition, within_s=within_s)

    def until_said(self, text: str) -> None:
        self.page.until(f"has({json.dumps(text)})")

    def press(self, text: str) -> None:
        """Press the button with this text, as soon as it can be pressed."""
        self.page.until(f"button({json.dumps(text)})")
        self.page.result_of("press", text)

    def fill(self, label: str, value: str) -> None:
        self.page.until(f"field({json.dumps(label)})")
        self.page.result_of("fill", label, value)

    def until_closed(self) -> None:
        """Wait until no dialog is open."""
        self.page.until("!document.querySelector('dialog')")

    def rows(self, label: str) -> Any:
        return self.page.result_of("rows", label)

    def violations(self, *rules: str) -> list[str]:
        """What axe-core finds wrong with the page as it is; with rules, against these."""
        if not self.page.value_of("'axe' in globalThis"):
            self.page.value_of(AXE.read_text() + "; null")
        found = self.page.value_of(
            f"axe.run(document, {{resultTypes: ['violations'] {f', runOnly: {list(rules)}' if rules else ''}}}).then("
            "(result) => result.violations.map((one) =>"
            " one.id + ': ' + one.nodes.slice(0, 3).map((node) => node.html.slice(0, 160) + ' ' + node.failureSummary)"
            ".join(' | ')))",
            within_s=60,
        )
        return list(found)

    def overflow(self) -> int:
        """How many pixels the page is wider than its window."""
        return int(self.page.value_of("document.documentElement.scrollWidth - innerWidth"))


@contextmanager
def console(browser: Browser, url: str, *parts: str, key: str | None = None) -> Iterator[Console]:
    """The console at a view; nothing may have gone wrong in it at the end."""
    with browser.blank() as page:
        shown = Console(page, url)
        shown.go(*parts, key=key)
        yield shown
        page.value_of("null")  # raises what has gone wrong in the page
