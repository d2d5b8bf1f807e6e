"""The files of the console (`docs/spec/console.md`): how they are sent, how large they are, where they come from."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.http.conftest import SMALL, Served, serving
from topics.http.console.assets import CONTENT_POLICY, MOST_BYTES, ROOT, assets
from topics.http.entity_tags import matches, tag_of

REPO = Path(__file__).resolve().parents[2]
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


@pytest.mark.trio
async def test_a_browser_is_led_to_the_page_and_a_program_is_not(served: Served) -> None:
    async with served.client() as client:
        led = await client.get("/", headers={"accept": BROWSER})
        assert (led.status_code, led.headers["location"]) == (302, "/console")
        for accept in ("*/*", "application/json", "", "text/html;q=0.5, application/json"):
            answer = await client.get("/", headers={"accept": accept})
            assert answer.json()["console"] == "/console"
            assert "accept" in answer.headers["vary"]


@pytest.mark.trio
async def test_every_file_is_sent_with_a_policy_that_allows_nothing_but_itself(served: Served) -> None:
    policy = CONTENT_POLICY.decode()
    assert "unsafe" not in policy
    for rule in ("default-src 'none'", "script-src 'self'", "connect-src 'self'", "frame-ancestors 'none'"):
        assert rule in policy
    async with served.client() as client:
        for path, kind in (
            ("/console", "text/html; charset=utf-8"),
            ("/console/app.js", "text/javascript; charset=utf-8"),
            ("/console/views/topics.js", "text/javascript; charset=utf-8"),
            ("/console/vendor/uplot.js", "text/javascript; charset=utf-8"),
            ("/console/style.css", "text/css; charset=utf-8"),
            ("/console/icon.svg", "image/svg+xml"),
        ):
            answer = await client.get(path)
            assert (answer.status_code, answer.headers["content-type"]) == (200, kind), path
            assert answer.headers["content-security-policy"] == policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["cross-origin-resource-policy"] == "same-origin"
            assert answer.headers["cache-control"] == "no-cache"
            again = await client.get(path, headers={"if-none-match": answer.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")
            assert again.headers["content-security-policy"] == policy


@pytest.mark.trio
@pytest.mark.parametrize("name", ["nothing.js", "views", "views/nothing.js", "..%2fassets.py", "vendor/../app.js"])
async def test_nothing_but_its_files_is_sent(served: Served, name: str) -> None:
    async with served.client() as client:
        assert (await client.get(f"/console/{name}")).status_code in (
            404,
            200 if ".." in name and "%" not in name else 404,
        )


@pytest.mark.trio
async def test_it_can_be_turned_off() -> None:
    async with serving(replace(SMALL, console=False)) as served, served.client() as client:
        for path in ("/console", "/console/app.js", "/console/views/topics.js"):
            assert (await client.get(path)).status_code == 404
        answer = await client.get("/", headers={"accept": BROWSER})
        assert (answer.status_code, "console" in answer.json()) == (200, False)


@pytest.mark.trio
async def test_it_is_there_while_the_log_is_replayed(served: Served) -> None:
    served.engine.status.phase = "replaying"
    async with served.client() as client:
        assert (await client.get("/console")).status_code == 200
        assert (await client.get("/v0/topics")).status_code == 503


def test_all_files_together_are_small() -> None:
    assert sum(len(asset.body) for asset in assets().values()) <= MOST_BYTES
    assert {path.suffix for path in ROOT.rglob("*") if path.is_file()} <= {".js", ".css", ".html", ".svg"}


def test_the_page_has_no_script_and_no_style_of_its_own() -> None:
    for name, asset in assets().items():
        text = asset.body.decode()
        if name.endswith(".html"):
            assert re.findall(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=|javascript:", text) == []
        if "vendor/" not in name:
            assert "innerHTML" not in text, name
            assert "dangerouslySetInnerHTML" not in text, name
            assert re.findall(r"https?://(?!www\.w3\.org)", text) == [], name


def test_every_module_that_is_asked_for_is_there() -> None:
    for name, asset in assets().items():
        for found in re.findall(r'from "(\.[^"]+)"', asset.body.decode()):
            target = (ROOT / name).parent.joinpath(found).resolve()
            assert target.is_file(), (name, found)


def test_the_files_of_others_are_what_they_were() -> None:
    sys.path.insert(0, str(REPO / "scripts"))
    try:
        from vendored_files import PACKAGES, wrong_files  # noqa: PLC0415
    finally:
        sys.path.pop(0)
    assert wrong_files(REPO) == []
    named = {file.path for package in PACKAGES for file in package.files}
    there = {path.relative_to(REPO).as_posix() for path in (ROOT / "vendor").iterdir()}
    assert there <= named
    for package in PACKAGES:
        assert any(file.path.endswith(".LICENSE") for file in package.files) or package.name == "preact", package.name


# -- entity tags -------------------------------------------------------------------------------------------------------


def test_a_tag_leaves_out_performance_and_nothing_else() -> None:
    first = b'{"topic":"t","count":1,"performance":{"server_total_ms":0.123}}'
    assert tag_of(first) == tag_of(first.replace(b"0.123", b'9.9,"records_scanned":4'))
    assert tag_of(first) != tag_of(first.replace(b'"count":1', b'"count":2'))


def test_data_that_looks_like_performance_counts() -> None:
    record = b'{"$seq":1,"data":{"a":1,"performance":{"b":%d}}}'
    assert tag_of(record % 1) != tag_of(record % 2)
    page = b'{"records":[{"data":{"a":1,"performance":{"b":%d}}}],"lag":0,"performance":{"server_total_ms":%d}}'
    assert tag_of(page % (1, 1)) != tag_of(page % (2, 1))
    assert tag_of(page % (1, 1)) == tag_of(page % (1, 2))


@pytest.mark.parametrize(
    ("given", "fits"),
    [
        (None, False),
        (b'W/"a"', True),
        (b'"a"', True),
        (b'"b", W/"a"', True),
        (b"*", True),
        (b'"b"', False),
        (b"a", False),
    ],
)
def test_what_a_client_says_it_has(given: bytes | None, fits: bool) -> None:
    assert matches(given, b'W/"a"') is fits
