"""Pages of strangers and a daemon without keys on loopback, in a real browser.

The browser's own checks of requests from public addresses to loopback are off (`chromium.FLAGS`), so nothing stands
between the pages and the daemon but the daemon.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser.chromium import REBOUND, Browser, Page
from tests.conformance.client import Client, fresh_name, running

LISTED = "http://127.0.0.1:1"
NEIGHBOUR = "http://127.0.0.1:2"
STRANGER = f"http://{REBOUND}:3"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with running(tmp_path_factory.mktemp("daemon"), cors_origins=LISTED) as client:
        yield client


@pytest.fixture
def jobs(daemon: Client) -> str:
    """A queue with one job, which becomes a dead letter when it is delivered for the second time."""
    name = fresh_name("jobs")
    daemon.put_topic(name, type="queue", max_deliveries=1, dead_letter=f"{name}.dead")
    daemon.append(name, "a job")
    return name


def loads(page: Page, element: str, url: str) -> bool:
    """Whether the page could have it loaded as an element of this kind."""
    return bool(
        page.value_of(
            f"new Promise(done => {{ const e = document.createElement('{element}');"
            f"e.onload = () => done(true); e.onerror = () => done(false); e.src = '{url}'; document.body.append(e) }})"
        )
    )


def status_of(page: Page, url: str, mode: str = "cors", **options: str) -> int | None:
    """The status that a script of the page sees; 0 for one that it may not see, None for no answer at all."""
    status = page.value_of(f"fetch('{url}', {options | {'mode': mode}}).then(a => a.status, () => null)")
    return int(status) if status is not None else None


@pytest.mark.parametrize("origin", [NEIGHBOUR, STRANGER])
def test_a_picture_takes_no_job(browser: Browser, daemon: Client, jobs: str, origin: str) -> None:
    with browser.page(origin, "plain.html") as page:
        for _ in range(3):
            assert not loads(page, "img", f"{daemon.daemon.url}/v0/topics/{jobs}/work?node=page")
            assert not loads(page, "script", f"{daemon.daemon.url}/v0/topics/{jobs}/work?node=page")
    assert daemon.state(jobs)["queue"] == {
        "ready": 1,
        "in_flight": 0,
        "delayed": 0,
        "dead_lettered": 0,
        "paused": False,
    }


@pytest.mark.parametrize("origin", [NEIGHBOUR, STRANGER])
def test_a_script_of_a_stranger_does_nothing(browser: Browser, daemon: Client, jobs: str, origin: str) -> None:
    url = daemon.daemon.url
    refused = "topics_requests_total"
    with browser.page(origin, "plain.html") as page:
        for path in (f"/v0/topics/{jobs}/work?node=page", f"/v0/topics/{jobs}", "/v0/topics"):
            assert status_of(page, url + path) is None
            assert status_of(page, url + path, "no-cors") == 0
        assert status_of(page, f"{url}/v0/admin/checkpoint?hold_ms=60000", "no-cors", method="POST") == 0
        assert status_of(page, f"{url}/v0/topics/{jobs}", method="DELETE") is None
        closed = "new Promise(done => { const s = new WebSocket('%s'); s.onopen = () => done(false);"
        closed = closed % f"{url.replace('http', 'ws')}/v0/ws" + "s.onclose = () => done(true) })"
        assert page.value_of(closed)
        ended = f"new Promise(done => {{ const s = new EventSource('{url}/v0/topics/{jobs}/stream');"
        assert page.value_of(ended + "s.onopen = () => done(false); s.onerror = () => done(true) })")
    assert daemon.state(jobs)["queue"]["ready"] == 1
    counted = daemon.get("/v0/metrics", headers={"accept": "application/json"}).json()[refused]
    statuses = {
        entry["labels"]["status"]
        for entry in counted
        if entry["labels"]["route"] in ("POST /v0/admin/checkpoint", "GET /v0/topics/{topic}/work", "GET /v0/ws")
    }
    assert statuses == {"403"}


def test_a_page_whose_name_was_pointed_at_the_machine_reads_nothing(
    browser: Browser, daemon: Client, jobs: str
) -> None:
    rebound = f"http://{REBOUND}:{daemon.daemon.port}"
    with browser.page(rebound, "plain.html") as page:
        # For the browser this is the page's own server.
        for path in ("/v0/topics", f"/v0/topics/{jobs}/diff", f"/v0/topics/{jobs}/work?node=page", "/v0/docs"):
            assert status_of(page, rebound + path) == 403
        assert status_of(page, f"{rebound}/v0/topics/{jobs}", method="DELETE") == 403
    assert daemon.state(jobs)["queue"]["ready"] == 1


def test_a_link_leads_to_the_documentation(browser: Browser, daemon: Client) -> None:
    url = f"{daemon.daemon.url}/v0/docs"
    with browser.page(STRANGER, "plain.html") as page:
        page.follow(url)
        page.until("document.readyState === 'complete' && location.pathname === '/v0/docs'")
        assert "/v0/topics/{topic}" in page.value_of("document.body.innerText")
    with browser.page(STRANGER, "plain.html") as page:
        page.follow(f"{daemon.daemon.url}/v0/topics")
        page.until("document.body && document.body.innerText.includes('forbidden')")


def test_somebody_who_types_the_address_is_answered(browser: Browser, daemon: Client) -> None:
    with browser.visit(f"{daemon.daemon.url}/v0/topics") as page:
        assert '"topics":' in page.value_of("document.body.innerText")


def test_a_page_that_is_listed_works(browser: Browser, daemon: Client, jobs: str) -> None:
    url = daemon.daemon.url
    with browser.page(LISTED, "plain.html") as page:
        assert status_of(page, f"{url}/v0/topics/{jobs}") == 200
        put = "{method: 'PUT', body: '{}', headers: {'content-type': 'application/json'}}"
        assert page.value_of(f"fetch('{url}/v0/topics/{jobs}-2', {put}).then(a => a.status)") == 201
        opened = f"new Promise(done => {{ const s = new EventSource('{url}/v0/topics/{jobs}/stream');"
        assert page.value_of(opened + "s.onopen = () => done(true); s.onerror = () => done(false) })")
        socket = f"new Promise(done => {{ const s = new WebSocket('{url.replace('http', 'ws')}/v0/ws');"
        assert page.value_of(socket + "s.onopen = () => done(true); s.onclose = () => done(false) })")
