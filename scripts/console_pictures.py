"""Pictures of the console, to be looked at: every view in light and dark colours, on a wide and on a narrow screen.

    scripts/console-shots DIRECTORY          all pictures, of a daemon of its own with something of everything
    scripts/console-shots --docs             only those of the README and of docs/console.md, to their places

A daemon is started on a free port with a directory that is removed at the end. Records are appended while the pictures
are made, so that the graphs have something to show. Chromium is that of `tests/browser`.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

from tests.browser.chromium import Browser, Page
from tests.browser.console_data import fill
from tests.conformance.client import Client, running
from tests.end_to_end.test_standby import pair

REPO: Final = Path(__file__).resolve().parents[1]
SETTLE_S: Final = 2.0
"""How long a view has to draw itself."""
HISTORY_S: Final = 40.0
"""How long the overview gathers figures for its graphs."""
FOLLOWED_S: Final = 8.0
"""How long a standby has to follow, and to tell of itself."""
READ_S: Final = 6.0
"""How long a daemon has to read who has its bucket."""

OPEN_FIRST: Final = "document.querySelectorAll('.row-link')[3].click()"
PRESS_PRIMARY: Final = "document.querySelector('.page-head button.primary').click()"


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture: its name, the address of the view, and what is done in it before."""

    name: str
    address: str
    act: str = ""
    height: int = 860


PICTURES: Final = (
    Picture("topics", "topics"),
    Picture("create-topic", "topics", PRESS_PRIMARY),
    Picture("topic", "topics/orders", OPEN_FIRST),
    Picture("topic-config", "topics/orders/config", height=1200),
    Picture("topic-append", "topics/orders/append"),
    Picture("topic-evidence", "topics/ledger/evidence"),
    Picture("topic-delete", "topics/orders/delete"),
    Picture("topic-empty", "topics/left"),
    Picture(
        "topic-long-name",
        "topics/telemetry.device-0000000000001.temperature.celsius.readings-with-a-rather-long-"
        "name:site-hamburg.hall-17.rack-4",
    ),
    Picture("topic-missing", "topics/no-such-topic"),
    Picture("queues", "queues"),
    Picture("queue", "queues/mails", OPEN_FIRST, 1300),
    Picture("groups", "queues/orders"),
    Picture("group", "queues/orders/shipping"),
    Picture("consumers", "consumers"),
    Picture("consumer", "consumers/orders/warehouse"),
    Picture("routers", "routers"),
    Picture("create-router", "routers", PRESS_PRIMARY),
    Picture("router", "routers/orders%3Earchive"),
    Picture("storage", "storage", height=1000),
    Picture("clients", "clients"),
)
WIDE: Final = 1280
NARROW: Final = 380

DOCS: Final = {"overview": "console-overview", "topic": "console-topic", "queue": "console-queue"}
"""The pictures of the pages, and their names there."""


@contextmanager
def _busy(client: Client) -> Iterator[None]:
    """Records come in while the block runs."""
    over = threading.Event()

    def append() -> None:
        rng = random.Random(1)
        with httpx.Client(base_url=client.daemon.url, timeout=10) as other, suppress(httpx.HTTPError):
            while not over.wait(rng.random() * 0.1):
                orders = [
                    {"data": {"order": rng.randrange(10**6), "total": round(rng.random() * 500, 2), "paid": True},
                     "tag": rng.choice(("eu:de", "eu:fr", "us:ny")), "node": f"shop-{rng.randrange(3)}"}
                    for _ in range(rng.randrange(1, 9))
                ]  # fmt: skip
                other.post("/v0/topics/orders", json={"records": orders})

    thread = threading.Thread(target=append)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _shoot(page: Page, url: str, picture: Picture, path: Path, *, width: int, dark: bool) -> None:
    page.set_width(width, picture.height)
    page.set_dark(dark=dark)
    page.go(f"{url}/console#/{picture.address}")
    page.until("document.querySelector('h1')")
    time.sleep(SETTLE_S)
    if picture.act:
        page.value_of(picture.act)
        time.sleep(SETTLE_S / 2)
    path.write_bytes(page.picture())
    print(path)


def _shoot_overview(page: Page, url: str, paths: dict[Path, bool], height: int) -> None:
    """The overview, in both colours, with the history of its graphs."""
    page.set_width(WIDE, height)
    page.go(f"{url}/console")
    time.sleep(HISTORY_S)
    for path, dark in paths.items():
        page.set_dark(dark=dark)
        time.sleep(SETTLE_S)
        path.write_bytes(page.picture())
        print(path)


def _all(browser: Browser, url: str, directory: Path) -> None:
    with browser.blank() as page:
        paths = {directory / f"overview-{name}.png": dark for name, dark in (("light", False), ("dark", True))}
        _shoot_overview(page, url, paths, 860)
    for picture in PICTURES:
        for width, dark in ((WIDE, False), (WIDE, True), (NARROW, False)):
            kind = "narrow" if width == NARROW else "dark" if dark else "light"
            with browser.blank() as page:
                _shoot(page, url, picture, directory / f"{picture.name}-{kind}.png", width=width, dark=dark)


def _pair(browser: Browser, root: Path, directory: Path) -> None:
    """The storage of an owner and of its standby, and what the standby shows where there is nothing."""
    (root / "bucket").mkdir()
    takeover = {"TOPICS_BUCKET_TAKEOVER": "1", "TOPICS_BUCKET_LEASE_MS": "20000"}
    with pair(root, f"file://{root}/bucket", takeover) as (owner, standby):
        url = f"http://127.0.0.1:{owner.port}"
        with httpx.Client(base_url=url, timeout=30, trust_env=False) as client:
            fill(client)
        standby.start()
        time.sleep(FOLLOWED_S)
        other = f"http://127.0.0.1:{standby.port}"
        for name, address, view in (
            ("owner", url, "storage"),
            ("standby", other, "storage"),
            ("standby", other, "topics/left"),
        ):
            picture = Picture(f"{name}-{view.replace('/', '-')}", view, height=1200)
            for width, dark in ((WIDE, False), (WIDE, True), (NARROW, False)):
                kind = "narrow" if width == NARROW else "dark" if dark else "light"
                with browser.blank() as page:
                    # The first call has the daemon read who has the bucket, the second one shows it.
                    page.go(f"{address}/console#/storage")
                    time.sleep(READ_S)
                with browser.blank() as page:
                    _shoot(page, address, picture, directory / f"{picture.name}-{kind}.png", width=width, dark=dark)


def _docs(browser: Browser, url: str) -> None:
    from PIL import Image  # noqa: PLC0415

    directory = REPO / "docs"
    with browser.blank() as page:
        _shoot_overview(page, url, {directory / f"{DOCS['overview']}.png": False}, 760)
    for picture in PICTURES:
        if picture.name in DOCS:
            with browser.blank() as page:
                path = directory / f"{DOCS[picture.name]}.png"
                _shoot(page, url, picture, path, width=WIDE, dark=picture.name == "queue")
    for name in DOCS.values():
        path = directory / f"{name}.png"
        with Image.open(path) as image:
            image.convert("RGB").quantize(256, kmeans=2, dither=Image.Dither.NONE).save(path, optimize=True)


def main() -> int:
    """Make the pictures. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/console-shots", description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("directory", nargs="?", type=Path, help="where the pictures go")
    parser.add_argument("--docs", action="store_true", help="only those of the pages, to their places")
    wanted = parser.parse_args()
    if wanted.docs == (wanted.directory is not None):
        parser.error("give a directory, or --docs")
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        (home / "daemon").mkdir()
        browser = Browser(home / "browser")
        try:
            with running(home / "daemon") as client:
                fill(client)
                client.put("/v0/topics/ledger", json={"durability": "fsync", "evidence": True}).raise_for_status()
                client.post("/v0/topics/ledger", json={"records": [{"data": "entry"}] * 3}).raise_for_status()
                with _busy(client):
                    if wanted.docs:
                        _docs(browser, client.daemon.url)
                    else:
                        wanted.directory.mkdir(parents=True, exist_ok=True)
                        _all(browser, client.daemon.url, wanted.directory)
            if wanted.directory is not None:
                _pair(browser, home, wanted.directory)
        finally:
            browser.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
