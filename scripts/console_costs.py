"""What the console costs: bytes and time to the first view, and the daemon's processor time with a tab open.

    scripts/console-measure                     with the data of the console's tests
    scripts/console-measure --topics 100000     with as many topics besides (they take a while to make)

The cost of a tab is the processor time of the daemon while one view is open and nothing else happens, less what the
daemon uses without a tab, as a share of one core. With `--rate` records are appended meanwhile; then the time without a
tab has the same load.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx

from tests.browser.chromium import Browser
from tests.browser.console_data import fill
from tests.conformance.client import Client, running
from topics.http.console.assets import MOST_BYTES, assets

VIEWS: Final = (
    "",
    "topics",
    "topics?sort=bytes",
    "topics/orders",
    "topics/orders/config",
    "queues",
    "queues/mails",
    "consumers",
    "routers",
    "storage",
    "clients",
)
SETTLE_S: Final = 5.0
SETTLE_ROUNDS: Final = 12
SETTLED: Final = 0.002
"""The difference of two shares of a core below which the daemon counts as at rest, and how often that is tried."""
MAKERS: Final = 4
"""Connections that make topics."""


def _cpu_s(pid: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _pid_of(port: int) -> int:
    """The child of this process that serves on the port: the daemon, as its environment says."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if f"PPid:\t{os.getpid()}\n" not in (path / "status").read_text():
                continue
            if b"TOPICS_DATA_DIR=" in (path / "environ").read_bytes():
                return int(path.name)
        except OSError:
            continue
    raise SystemExit(f"the daemon on port {port} was not found")


def _share(pid: int, seconds: float) -> float:
    """The share of a core that a process uses."""
    before, began = _cpu_s(pid), time.monotonic()
    time.sleep(seconds)
    return (_cpu_s(pid) - before) / (time.monotonic() - began)


def _make_topics(url: str, count: int) -> None:
    """Make this many topics of class `ephemeral`, each with a record."""

    def make(share: range) -> None:
        with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
            for i in share:
                config = {"records": [{"data": i}], "config": {"durability": "ephemeral"}}
                client.post(f"/v0/topics/many-{i:06}", json=config).raise_for_status()

    with ThreadPoolExecutor(MAKERS) as pool:
        list(pool.map(make, [range(k, count, MAKERS) for k in range(MAKERS)]))


@contextmanager
def _load(url: str, per_s: float) -> Iterator[None]:
    """Append so many records a second, one at a time, while the block runs."""
    over = threading.Event()

    def append() -> None:
        with httpx.Client(base_url=url, timeout=10, trust_env=False) as client:
            while not over.wait(1 / per_s):
                client.post("/v0/topics/orders", json={"records": [{"data": {"n": 1}}]})

    threads = [threading.Thread(target=append)] if per_s else []
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def _first_view(browser: Browser, url: str) -> None:
    raw = sum(len(asset.body) for asset in assets().values())
    print(f"files: {len(assets())}, {raw:,} bytes of at most {MOST_BYTES:,}, uncompressed")
    for what in ("first visit", "another tab"):
        with browser.blank() as page:
            began = time.monotonic()
            page.go(f"{url}/console")
            page.until("document.querySelector('.tile')")
            took = time.monotonic() - began
            sent = page.value_of(
                "performance.getEntriesByType('resource').concat(performance.getEntriesByType('navigation'))"
                ".filter((one) => !one.name.includes('/v0/')).reduce((sum, one) => sum + one.transferSize, 0)"
            )
            paint = page.value_of("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null")
            shown = "-" if paint is None else f"{paint:.0f} ms"
            print(f"{what}: {sent:,} bytes sent, first paint {shown}, figures shown after {took * 1000:.0f} ms")


def _settled(pid: int, seconds: float) -> float:
    """The share of a core that a process uses by itself, as soon as two measurements in a row agree: new topics are
    stored and looked at for a while."""
    before = _share(pid, seconds)
    for _ in range(SETTLE_ROUNDS):
        now = _share(pid, seconds)
        if abs(now - before) < SETTLED:
            break
        before = now
    return now


def _tabs(browser: Browser, client: Client, seconds: float) -> None:
    url = client.daemon.url
    pid = _pid_of(client.daemon.port)
    without = _settled(pid, seconds)
    print(f"daemon without a tab: {without:.2%} of a core", flush=True)
    for view in VIEWS:
        with browser.blank() as page:
            page.set_width(1280)
            page.go(f"{url}/console#/{view}")
            time.sleep(SETTLE_S)
            share = _share(pid, seconds)
        print(f"with #/{view}: {share:.2%}, the tab {share - without:+.2%}", flush=True)
    print(f"daemon without a tab, again: {_share(pid, seconds):.2%} of a core")


def main() -> int:
    """Measure and print. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/console-measure", description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("--topics", type=int, default=0, help="topics besides those of the tests")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each view is open")
    parser.add_argument("--rate", type=float, default=0.0, help="records that are appended in a second meanwhile")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        (home / "daemon").mkdir()
        browser = Browser(home / "browser")
        try:
            with running(home / "daemon", max_topics=0) as client:
                fill(client)
                if wanted.topics:
                    began = time.monotonic()
                    _make_topics(client.daemon.url, wanted.topics)
                    print(f"{wanted.topics:,} topics made in {time.monotonic() - began:.0f} s", flush=True)
                _first_view(browser, client.daemon.url)
                with _load(client.daemon.url, wanted.rate):
                    _tabs(browser, client, wanted.seconds)
        finally:
            browser.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
