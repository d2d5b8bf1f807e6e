"""What strangers can do to the console: a hostile record does nothing in it, and a hostile page nothing with it."""

from __future__ import annotations

import base64
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


EVIL = '<img src=x onerror="globalThis.owned = 1">\u202e\u200b'
"""Markup, and characters that hide and turn text. A caller that may append, claim or acquire can have it shown to
others."""

SAID = '<img src=x onerror="globalThis.owned = 1">\\u202e\\u200b'


def check_harmless(shown: Console, view: str) -> None:
    """Nothing on the page has come to life, and nothing that hides or turns text is in it, not in a tip either."""
    page = shown.page
    assert page.value_of("globalThis.owned ?? null") is None, view
    assert page.value_of("document.querySelectorAll('main img, main script, dialog img').length") == 0, view
    assert page.value_of("document.querySelectorAll('[href^=\"javascript:\" i]').length") == 0, view
    turned = "/[\\u202e\\u200b]/"
    assert not page.value_of(f"{turned}.test(document.body.innerText) || {turned}.test(document.title)"), view
    assert not page.value_of(f"[...document.querySelectorAll('[title]')].some((one) => {turned}.test(one.title))"), view
    assert page.complaints == [], view


@pytest.fixture(scope="module")
def evil(client: Client) -> Client:
    """Topics, jobs, groups, consumers and routers with hostile texts wherever a client may write some."""

    def call(method: str, path: str, **body: Any) -> Any:
        answer = client.request(method, f"/v0/{path}", json=body)
        answer.raise_for_status()
        return answer.json()

    record = {"data": {EVIL: EVIL}, "tag": EVIL, "node": EVIL, "meta": {EVIL: EVIL}}
    call("POST", "topics/evil", records=[record], fence={"name": EVIL, "token": 1})
    call("PUT", "topics/evil", schema={"description": EVIL})
    call("PUT", "topics/evil/consumers/c", filter=["tag", "Eq", EVIL])
    call("POST", "topics/evil/consumers/c/acquire", owner=EVIL, lease_ms=3_600_000)
    call("PUT", "topics/evil/groups/g", **{"from": "earliest"}, filter=["tag", "Eq", EVIL])
    call("POST", "topics/evil/groups/g/claim", node=EVIL, max=1, lease_ms=3_600_000)
    call("PUT", "routers/evil>copy", source="evil", dest="copy", filter=["node", "Eq", EVIL])
    call("PUT", "topics/work", type="queue", dead_letter="work.dead", retry={"delay_ms": 3_600_000})
    call("POST", "topics/work", records=[record] * 3)
    claimed = call("POST", "topics/work/claim", node=EVIL, max=3, lease_ms=3_600_000)["claimed"]
    seqs = [job["$seq"] for job in claimed]
    call("POST", "topics/work/nack", node=EVIL, seqs=seqs[:1], error=EVIL)
    call("POST", "topics/work/nack", node=EVIL, seqs=seqs[1:2], error=EVIL, dead=True)
    return client


@pytest.mark.parametrize(
    ("parts", "shows"),
    [
        (("topics", "evil"), "Fences: "),
        (("topics", "evil", "latest"), ""),
        (("topics", "evil", "config"), None),
        (("queues", "evil", "g"), "held by "),
        (("queues", "work"), "last error "),
        (("consumers",), ""),
        (("consumers", "evil", "c"), ""),
        (("routers", "evil>copy"), '["node","Eq",'),
        (("clients",), None),
        ((), None),
    ],
    ids=lambda value: "/".join(value) if isinstance(value, tuple) else None,
)
def test_hostile_texts_do_nothing_in_any_view(
    browser: Browser, evil: Client, parts: tuple[str, ...], shows: str | None
) -> None:
    with console(browser, evil.daemon.url, *parts) as shown:
        shown.page.set_width(1280, 1400)
        shown.until("!document.querySelector('.spinner') && document.querySelector('h1')")
        if parts[0:1] == ("queues",):
            for row in shown.rows("Jobs"):
                shown.press(row[0])
                shown.until("document.querySelector('.history')")
                check_harmless(shown, "/".join(parts))
            shown.page.value_of("document.querySelector('.row-link[aria-expanded=false]')?.click()")
        elif "latest" in parts:
            shown.until("document.querySelector('.row-link')")
            shown.page.value_of("document.querySelector('.row-link').click()")
            shown.until("document.querySelector('aside')")
        if shows is not None:
            text = SAID if not shows.startswith("[") else json.dumps(SAID)[1:-1].replace("\\\\", "\\")
            shown.until(f"has({json.dumps(shows)}) && has({json.dumps(text)})")
        check_harmless(shown, "/".join(parts))


def test_a_hostile_dead_letter_does_nothing(browser: Browser, evil: Client) -> None:
    with console(browser, evil.daemon.url, "queues", "work") as shown:
        shown.fill("State", "dead")
        shown.until("rows('Jobs').length === 1 && rows('Jobs')[0][1] === 'dead'")
        shown.press(shown.rows("Jobs")[0][0])
        shown.until(f"document.querySelector('.history') && has({json.dumps(SAID)})")
        check_harmless(shown, "dead letters")


REPLICAS = [
    {"role": "owner", "node": EVIL, "url": "javascript:globalThis.owned = 1", "is_this": False, "state": "owns"},
    {"role": "standby", "node": EVIL, "url": EVIL, "is_this": False, "state": "following", "round": 7, "lag_ms": 1},
    {"role": "standby", "node": EVIL, "url": 'https://a"onmouseover=b', "is_this": True, "state": "silent"},
]


def test_what_a_bucket_and_a_daemon_say_is_text(browser: Browser, client: Client) -> None:
    """Anybody who may write to the bucket can write the list of replicas. Errors repeat the names that they are
    about."""
    nothing = {"epoch": 1, "round": None, "at": None, "lag_ms": None, "heard_ms": None}
    answer = client.get("/v0/storage").json() | {"replicas": [nothing | one for one in REPLICAS]}
    answer["checkpoints"]["error"] = EVIL
    body = base64.b64encode(json.dumps(answer).encode()).decode()
    with console(browser, client.daemon.url) as shown:
        with shown.page.answering("*/v0/storage*", lambda url: body):
            shown.go("storage")
            shown.until("rows('Replicas').length === 3")
            assert shown.rows("Replicas")[0][0] == "javascript:globalThis.owned = 1"
            assert shown.rows("Replicas")[1][0] == SAID
            check_harmless(shown, "storage")
        shown.go("topics", EVIL)
        shown.until("document.querySelector('[role=alert]')")
        shown.page.complaints.clear()  # of the daemon's 400
        check_harmless(shown, "an address that names no topic")


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
        for tag, source, path in (
            ("script", "src", "vendor/uplot.js"),
            ("img", "src", "icon.svg"),
            ("link", "href", "style.css"),
        ):
            loading = (
                f"new Promise((done) => {{ const one = document.createElement('{tag}'); one.rel = 'stylesheet';"
                f"one.onload = () => done('loaded'); one.onerror = () => done('refused');"
                f"one.{source} = '{url}/{path}'; document.head.append(one) }})"
            )
            assert page.value_of(loading) == "refused", tag
        assert page.value_of("typeof globalThis.uPlot") == "undefined"
        opened = page.value_of(
            f"(() => {{ globalThis.other = open('{url}'); return 1 }})() && new Promise((done) => setTimeout(() =>"
            "done(other === null || other.closed), 1500))"
        )
        assert opened, "the console has no opener, and its opener has no handle of it"
