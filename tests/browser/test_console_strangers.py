"""What strangers can do to the console: a hostile record does nothing in it, and a hostile page nothing with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser.chromium import Browser
from tests.browser.console_page import Console, console
from tests.conformance.client import Client, running

NEIGHBOUR = "http://127.0.0.1:2"

MARKUP = '<img src=x onerror="globalThis.owned = 1"><script>globalThis.owned = 2</script>'


def deep(levels: int) -> Any:
    value: Any = "the bottom"
    for level in range(levels):
        value = [value] if level % 2 else {"in": value}
    return value


HOSTILE: list[dict[str, Any]] = [
    {"data": {"text": MARKUP, MARKUP: "as a key", "dangerouslySetInnerHTML": {"__html": MARKUP}, "type": "script"}},
    {"data": MARKUP, "tag": MARKUP, "node": MARKUP, "meta": {MARKUP: MARKUP}},
    {
        "data": {
            "a": "\u202eevil\u202c",
            "b": "zero\u200bwidth\ufeff",
            "c": "\u0000\u0007\u001b[31m\x85",
            "d": "\u2028\u2029",
        }
    },
    {"data": {"__proto__": {"owned": 3}, "constructor": {"prototype": {"owned": 4}}, "toJSON": "no", "$bytes": 1}},
    {"data": "x" * 1_000_000},
    {"data": {"list": list(range(5_000))}},
    {"data": deep(500)},
    {"data": {"javascript:globalThis.owned=5": "javascript:globalThis.owned=5"}},
    {"data": {"$bytes": "PHNjcmlwdD4=", "$content_type": "text/html"}},
    {"data": None},
]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with running(tmp_path_factory.mktemp("daemon")) as client:
        client.append("hostile", records=HOSTILE)
        exact = (
            '{"records":[{"data":{"large":9007199254740993,"precise":0.1000000000000000055511151231257827,"one":1.0}}]}'
        )
        client.post("/v0/topics/hostile", content=exact, headers={"content-type": "application/json"})
        client.put_topic("queue", type="queue")
        client.append("queue", records=HOSTILE[:4])
        yield client


def open_folds(shown: Console) -> None:
    """Open all that is folded in the record that is shown."""
    shown.page.value_of(
        "(async () => { for (let i = 0; i < 600; i += 1) { const folds = document.querySelectorAll("
        "'aside .fold[aria-expanded=false]');"
        "if (folds.length === 0) break; for (const fold of folds) fold.click();"
        "await new Promise((drawn) => setTimeout(drawn)) } })()",
        within_s=60,
    )


def open_all(shown: Console) -> str:
    """Open one record after the other, and all that is folded in it. Returns what was said."""
    said = []
    for row in shown.rows("Records"):
        shown.press(row[0])
        shown.until(f"document.querySelector('aside h2').textContent === 'Seq {row[0]}'")
        open_folds(shown)
        said.append(shown.page.value_of("document.querySelector('aside').innerText.slice(0, 100000)"))
    return "\n".join(said)


def test_a_hostile_record_does_nothing_and_is_shown_as_it_is(browser: Browser, client: Client) -> None:
    with console(browser, client.daemon.url, "topics", "hostile") as shown:
        page = shown.page
        page.set_width(1280, 1400)
        shown.until(f"rows('Records').length === {len(HOSTILE) + 1}")
        said = open_all(shown)
        assert page.value_of("globalThis.owned ?? ({}).owned ?? null") is None
        assert page.value_of("document.querySelectorAll('main img, main script, main iframe').length") == 0
        assert json.dumps(MARKUP) in said
        for text in (
            "\\u202eevil\\u202c",
            "zero\\u200bwidth\\ufeff",
            "\\u0000\\u0007\\u001b[31m\\u0085",
            "\\u2028\\u2029",
        ):
            assert text in said, text
        for text in ("9007199254740993", "0.1000000000000000055511151231257827", "1.0"):
            assert text in said, text
        assert "999,600 more characters" in said
        assert "4,900 more" in said
        assert "the bottom" not in said, "what is nested so deeply is text, and shown in pieces"
        shown.press("7")
        shown.until("document.querySelector('aside h2').textContent === 'Seq 7'")
        open_folds(shown)
        page.value_of("document.querySelector('aside .json .small').click()")
        shown.until("document.querySelector('aside').innerText.includes('the bottom')")
        assert "Raw bytes of the type text/html" in said
        assert shown.overflow() <= 0
        page.set_width(380)
        assert shown.overflow() <= 0
        assert page.complaints == []


def test_a_hostile_job_does_nothing(browser: Browser, client: Client) -> None:
    with console(browser, client.daemon.url, "queues", "queue") as shown:
        shown.until("rows('Jobs').length === 4")
        for row in shown.rows("Jobs"):
            shown.press(row[0])
            shown.until("document.querySelector('.history')")
        assert shown.page.value_of("globalThis.owned ?? ({}).owned ?? null") is None
        assert shown.page.value_of("document.querySelectorAll('main img, main script').length") == 0
        assert shown.page.complaints == []


def test_a_hostile_filter_in_an_address_does_nothing(browser: Browser, client: Client) -> None:
    with console(browser, client.daemon.url) as shown:
        shown.page.value_of(f"location.hash = '#/topics/hostile?filter=' + encodeURIComponent({json.dumps(MARKUP)})")
        shown.until_said("expected tag, node, meta, data")
        shown.page.value_of(f"location.hash = '#/topics/' + encodeURIComponent({json.dumps(MARKUP)})")
        shown.until("document.querySelector('h1').textContent.includes('onerror')")
        assert shown.page.value_of("globalThis.owned ?? null") is None
        shown.page.complaints.clear()


@pytest.mark.parametrize("origin", [NEIGHBOUR, "http://evil.test:3"])
def test_a_page_of_another_origin_can_neither_frame_nor_read_nor_steer_it(
    browser: Browser, client: Client, origin: str
) -> None:
    url = f"{client.daemon.url}/console"
    with browser.page(origin, "plain.html") as page:
        # A frame that is refused has an opaque origin: nothing of it can be read, and it shows nothing of the console.
        page.value_of(
            f"new Promise((done) => {{ const f = document.createElement('iframe'); f.src = '{url}';"
            "f.onload = () => done(0); document.body.append(f); setTimeout(done, 3000) })"
        )
        assert page.value_of("document.querySelector('iframe').contentDocument") is None
        reading = f"fetch('{url}').then((answer) => answer.text(), (error) => error.name)"
        assert page.value_of(reading) == "TypeError"
        assert page.value_of(f"import('{url}/api.js').then(() => 'loaded', (error) => error.name)") == "TypeError"
        opened = page.value_of(
            f"(() => {{ globalThis.other = open('{url}'); return 1 }})() && new Promise((done) => setTimeout(() =>"
            "done(other === null || other.closed), 1500))"
        )
        assert opened, "the console has no opener, and its opener has no handle of it"
