"""`README.md`, `docs/tour.md` and `docs/recipes.md` are run as they stand: their blocks in order, and what these print.

Also tested is what the recipes say about programs that are killed.

The README, the tour and each recipe get a directory and a first terminal. Blocks of `sh` are typed into that terminal,
or into one more that runs until the end of the test. Python becomes a file with the name in its first line.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec
import pytest

from tests.client.ports import free_port
from tests.client.proxy import Fate, Proxy
from tests.conformance.client import Daemon, fresh_name
from topics.client import Client, NewRecord, Record

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "recipes.md"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ANOTHER = "# another terminal\n"
SERVES = re.compile(r"topics serve --port \$\{(\w+):-\d+\}")
"""A daemon of the page's own, whose port the tests choose."""
LONG_S = 60


@dataclass(frozen=True)
class Block:
    """What stands between two fences."""

    language: str
    text: str

    @property
    def file(self) -> str:
        """The name that Python gives itself."""
        named = re.match(r"# (\w+\.py)\n", self.text)
        assert named is not None, self.text
        return named[1]


def blocks_of(text: str) -> list[Block]:
    """The fenced blocks of a page or of a part of one, in order."""
    return [Block(*found) for found in FENCE.findall(text)]


def recipes() -> dict[str, list[Block]]:
    """The blocks below each heading of the page of recipes."""
    _, *parts = re.split(r"^## (.+)\n", PAGE.read_text(), flags=re.MULTILINE)
    return {title: blocks_of(text) for title, text in zip(parts[::2], parts[1::2], strict=True)}


RECIPES = recipes()

README: Final = "README"
TOUR: Final = "tour"
WHOLE: Final = {README: (ROOT / "README.md").read_text(), TOUR: (ROOT / "docs" / "tour.md").read_text()}
"""Pages that are run from the first line to the last."""
BLOCKS = RECIPES | {title: blocks_of(text) for title, text in WHOLE.items()}

NOT_RUN: Final = {
    README: {
        "scripts/serve ": "makes an environment from the index and runs until it is stopped; the test has a daemon",
    },
    TOUR: {
        "scripts/copy topics-data backup\n": "needs the directory of a daemon: test_consistent_copy.py",
        "python -m topics.spark load": "needs Spark: test_pipeline_demo.py, tests/spark",
    },
}
"""Indented commands of these pages that the test here does not run, by their beginnings, and why."""
INDENTED = re.compile(r"(?:^    .*\n(?:\n(?=    ))?)+", re.MULTILINE)
STREAMED = re.compile(r"    (?:retry|id|event|data): ")
"""How a line begins that a stream of server-sent events prints."""


class Terminal:
    """A shell that somebody types into: what one block exports is there in the next one."""

    def __init__(self, place: Path, environ: dict[str, str]) -> None:
        self._block = place / ".block"
        self._log = (place / "terminal.log").open("ab")
        self._shell = subprocess.Popen(
            ["bash"],
            cwd=place,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )

    def run(self, text: str) -> tuple[int, str]:
        """Type it in and wait for its end: the last exit code, and what was printed."""
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._block.write_text(text)
        guard = threading.Timer(LONG_S, self.close)
        guard.start()
        try:
            self._shell.stdin.write(b". ./.block < /dev/null; printf '\\0%d\\n' $?\n")
            self._shell.stdin.flush()
            printed = b""
            while b"\0" not in printed:
                line = self._shell.stdout.readline()
                assert line, f"{text} has not ended in {LONG_S} s"
                printed += line
        finally:
            guard.cancel()
        said, _, code = printed.rpartition(b"\0")
        return int(code), said.decode()

    def close(self) -> None:
        """End the shell and what it has started."""
        os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.wait(10)


class Place:
    """The directory of one recipe, with its terminals. What runs in it ends with it."""

    def __init__(self, root: Path, title: str, **environ: str) -> None:
        self.root = root
        self.blocks = BLOCKS[title]
        # Without buffers a line that is printed is many writes, and who is killed leaves half of one.
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("TOPICS_") and name != "PYTHONUNBUFFERED"
        }
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environ = kept | {"PATH": path, "TOPICS_MIN_FREE_BYTES": "0"} | environ
        self._first: Terminal | None = None
        self._jobs: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            while self._jobs:
                self.kill(self._jobs[-1])
        finally:
            if self._first is not None:
                self._first.close()

    def walk(self) -> None:
        """Do what the page says, from the first block to the last, and find what it shows."""
        code, printed, last = 0, "", ""
        for block in self.blocks:
            if block.language == "":
                self._becomes(last, printed, block.text)
                code = 0
                continue
            assert code == 0, (last, code, self.log())
            if block.language == "python":
                self.write(block)
            elif block.text.startswith(ANOTHER):
                self.start(block.text)
                if (serves := SERVES.search(block.text)) is not None:
                    url = f"http://127.0.0.1:{self.environ[serves[1]]}"
                    self.until(lambda url=url: answers(url))  # type: ignore[misc]
            else:
                code, printed = self.type(block.text)
                last = block.text
        assert code == 0, (last, self.log())

    def _becomes(self, typed: str, printed: str, shown: str) -> None:
        """What is printed is what is shown; what goes on in other terminals may take a while."""
        (*_, last_line) = typed.strip().splitlines()

        def is_shown() -> bool:
            nonlocal printed
            if not is_like(printed, shown):
                _, printed = self.type(last_line)
            return is_like(printed, shown)

        try:
            self.until(is_shown, every_s=1)  # each look is a process
        except AssertionError:
            raise AssertionError(f"{typed}prints\n{printed}not\n{shown}\n{self.log()}") from None

    def type(self, text: str) -> tuple[int, str]:
        """Type something into the first terminal."""
        if self._first is None:
            self._first = Terminal(self.root, self.environ)
        return self._first.run(text)

    def write(self, block: Block) -> None:
        (self.root / block.file).write_text(block.text)

    def write_all(self) -> None:
        """Every Python file of the recipe."""
        for block in self.blocks:
            if block.language == "python":
                self.write(block)

    def start(self, text: str, **environ: str) -> subprocess.Popen[bytes]:
        """Run something in another terminal."""
        with (self.root / "terminal.log").open("ab") as log, (self.root / "printed").open("ab") as printed:
            job = subprocess.Popen(
                # It has an end of its own: if the tests are killed, nobody else ends it.
                ["timeout", "--signal=KILL", f"{10 * LONG_S}", "bash", "-c", text],
                cwd=self.root,
                env=self.environ | environ,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=log,
                start_new_session=True,
            )
        self._jobs.append(job)
        return job

    def kill(self, job: subprocess.Popen[bytes]) -> None:
        """SIGKILL, for all that the terminal has running."""
        self._jobs.remove(job)
        with suppress(ProcessLookupError):  # it has ended by itself
            os.killpg(job.pid, signal.SIGKILL)
        job.wait(10)

    def until(self, condition: Callable[[], bool], every_s: float = 0.05) -> None:
        """Wait for something; if it does not come to pass, what was said on stderr tells why."""
        deadline = time.monotonic() + LONG_S
        while not condition():
            assert time.monotonic() < deadline, f"it has not come to pass: {self.log()}"
            time.sleep(every_s)

    def sh(self, *mentioned: str) -> str:
        """The block of the page that has this in it."""
        (found,) = [
            block.text
            for block in self.blocks
            if block.language == "sh" and all(word in block.text for word in mentioned)
        ]
        return found

    def printed(self) -> list[str]:
        """What other terminals have printed, by lines."""
        found = self.root / "printed"
        return found.read_text().splitlines() if found.exists() else []

    def log(self) -> str:
        """The end of what was said on stderr, for who looks for the reason."""
        found = self.root / "terminal.log"
        return found.read_text()[-3000:] if found.exists() else ""


def is_like(printed: str, shown: str) -> bool:
    """Whether something is as it is shown: the same text, or an answer of the daemon that differs only in what is
    different each time."""
    if printed == shown:
        return True
    try:
        return bool(lasting(json.loads(printed)) == lasting(json.loads(shown)))
    except ValueError:
        return False


def indented(title: str) -> list[str]:
    """The indented blocks of a page outside of fences."""
    return INDENTED.findall(FENCE.sub("", WHOLE[title]))


def streamed(title: str) -> list[str]:
    """The lines that a page shows as the output of a stream, in order."""
    blocks = [text for text in indented(title) if STREAMED.match(text)]
    return [line.strip() for text in blocks for line in text.splitlines() if line.strip()]


def is_streamed_line(printed: str, shown: str) -> bool:
    """Return True if the lines are equal but for times, epochs and names of leases within their data."""
    data = "data: "
    if printed.startswith(data) and shown.startswith(data):
        return is_like(printed.removeprefix(data), shown.removeprefix(data))
    return printed == shown


def lasting(value: Any) -> Any:
    """JSON without times, epochs, the names of leases and the time that was taken."""
    if isinstance(value, list):
        return [lasting(item) for item in value]
    if isinstance(value, dict):
        passing = ("performance", "$ts", "epoch", "lease_id", "deadline")
        return {name: lasting(item) for name, item in value.items() if name not in passing}
    return value


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/v0/ready", timeout=5, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture(scope="module")
def two_daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Daemon]]:
    """Their ports stay when they are killed and started again."""
    with ExitStack() as stack:
        daemons = [Daemon(tmp_path_factory.mktemp("daemon"), port=free_port()) for _ in range(2)]
        for daemon in daemons:
            stack.callback(daemon.kill)
            daemon.start().close()
        yield daemons


@pytest.fixture
def daemons(two_daemons: list[Daemon]) -> list[Daemon]:
    """Two of them, as if they were new."""
    for daemon in two_daemons:
        with Client(daemon.url) as client:
            for found in client.list_all():
                client.delete_topic(found.topic)
    return two_daemons


@pytest.fixture
def daemon(daemons: list[Daemon]) -> Daemon:
    return daemons[0]


@pytest.fixture
def open_place(tmp_path: Path) -> Iterator[Callable[..., Place]]:
    """`open_place(title, url)`: the directory of a recipe."""
    with ExitStack() as stack:

        def opened(title: str, url: str, **environ: str) -> Place:
            root = tmp_path / fresh_name("place")
            root.mkdir()
            return stack.enter_context(Place(root, title, TOPICS_URL=url, **environ))

        yield opened


def data_of(client: Client, topic: str) -> list[Any]:
    """The data of all records, none of which may be missing."""
    items = list(client.read(topic))
    assert all(isinstance(item, Record) for item in items), items
    return [item.data for item in items if isinstance(item, Record)]


# ----------------------------------------------------------------- the page


def test_every_block_says_what_it_is() -> None:
    assert len(RECIPES) == 16
    for title, blocks in RECIPES.items():
        assert {block.language for block in blocks} <= {"sh", "python", ""}, title
        assert all(block.file for block in blocks if block.language == "python")
        assert any(block.language == "" for block in blocks), f"{title} shows nothing"
    assert PAGE.read_text().count("```") == 2 * sum(map(len, RECIPES.values()))


@pytest.mark.parametrize(
    "title",
    [
        "Job queue",
        "Redrive after a fix",
        "In order for each customer",
        "Publish and subscribe",
        "Outbox",
        "Log shipping",
        "Read model",
        "Event-sourced aggregate",
        "One leader",
        "Unique user names",
        "Outbox without an outbox",
        "Backfill",
        "Fan-out to services",
    ],
)
def test_a_recipe_does_what_it_shows(title: str, daemon: Daemon, open_place: Callable[..., Place]) -> None:
    open_place(title, daemon.url).walk()


def test_the_audit_log_does_what_it_shows(open_place: Callable[..., Place]) -> None:
    """Its daemon is one of the page's own blocks."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    place = open_place("Audit log", f"http://127.0.0.1:{free_port()}", AUDIT_PORT=str(port))
    place.walk()
    keys = re.findall(r"TOPICS_TOKEN=(\S+)", "".join(block.text for block in place.blocks))
    setup, shop = keys[0], keys[1]
    assert place.type(f"TOPICS_TOKEN={shop} topics read audit") == (4, "")

    # What is in it is on the disk.
    (serve,) = place._jobs
    place.kill(serve)
    place.start(place.sh("topics serve"))
    place.until(lambda: answers(url))
    code, printed = place.type(place.sh("topics read audit"))
    assert code == 0
    assert len(printed.splitlines()) == 2

    # When it is full, whoever wants to do something hears of it before.
    assert place.type(f"TOPICS_TOKEN={setup} topics create audit --cap-records 2 > set.out")[0] == 0
    assert place.type("python audit.py ann 'deletes everything'")[0] == 1
    assert "TopicFull" in place.log()


def test_the_mirror_does_what_it_shows(daemon: Daemon, open_place: Callable[..., Place]) -> None:
    port = free_port()
    b = f"http://127.0.0.1:{port}"
    place = open_place("Multi-node mirror", daemon.url, A=daemon.url, B=b, B_PORT=str(port))
    place.walk()
    with Client(daemon.url) as at_a, Client(b) as at_b:
        place.until(lambda: sorted(data_of(at_b, "notes")) == ["from A", "from B"])
        assert sorted(data_of(at_a, "notes")) == ["from A", "from B"]


def test_the_readme_the_tour_and_all_recipes_do_what_they_show_on_one_daemon(
    daemons: list[Daemon], open_place: Callable[..., Place]
) -> None:
    """As a person does who reads from the beginning. Where the tour says `kill -9`, the daemon is killed."""
    daemon = daemons[0]
    locked, audit, b = free_port(), free_port(), free_port()
    own = {"LOCKED_PORT": str(locked), "AUDIT_PORT": str(audit), "B_PORT": str(b), "A": daemon.url}
    readme = open_place(README, daemon.url, **own)
    readme.walk()
    readme.until(lambda: shows_what_its_streams_print(readme, README))

    tour = open_place(TOUR, daemon.url, **own)
    blocks = tour.blocks
    watched = 1 + index_of(blocks, lambda block: block.text.startswith(ANOTHER) and "/stream" in block.text)
    killed = index_of(blocks, lambda block: block.text == 'curl -sS "$url/topics/purchases/diff"\n')
    tour.blocks = blocks[:watched]
    tour.walk()
    tour.until(lambda: shows_what_its_streams_print(tour, TOUR))  # what comes next deletes what it shows
    tour.blocks = blocks[watched:killed]
    tour.walk()
    daemon.end(signal.SIGKILL)
    daemon.start().close()
    tour.blocks = blocks[killed:]
    tour.walk()
    for title in RECIPES:
        open_place(title, daemon.url, B=f"http://127.0.0.1:{b}", **own).walk()


def index_of(blocks: list[Block], is_it: Callable[[Block], bool]) -> int:
    """Where the one block of a page is that has this property."""
    (found,) = [index for index, block in enumerate(blocks) if is_it(block)]
    return found


def shows_what_its_streams_print(place: Place, title: str) -> bool:
    """Return True if other terminals have printed every line that the page shows of a stream."""
    shown, printed = streamed(title), place.printed()
    assert any(line.startswith("data: ") for line in shown), f"{title} shows no stream"
    return all(any(is_streamed_line(line, wanted) for line in printed) for wanted in shown)


@pytest.mark.parametrize("title", list(WHOLE))
def test_every_block_of_a_whole_page_is_run_or_has_a_reason_not_to_be(title: str) -> None:
    """Fenced blocks are run, all of them. Indented ones are shown by a stream, or are named with their reason."""
    assert {block.language for block in BLOCKS[title]} == {README: {"sh", ""}, TOUR: {"sh", "python", ""}}[title]
    assert WHOLE[title].count("```") == 2 * len(BLOCKS[title])
    commands = [text.strip() for text in indented(title) if not STREAMED.match(text)]
    assert len(commands) == len(NOT_RUN[title])
    assert all(text.startswith(known.strip()) for text, known in zip(commands, NOT_RUN[title], strict=True))


def test_the_pages_have_no_topic_in_common() -> None:
    """All of them can be tried on one daemon: nobody meets what an earlier page has left behind."""
    named = re.compile(r"/topics/([a-z][a-z-]*)|topics (?:create|append|tail -f|queue work) ([a-z][a-z-]*)")
    topics = {
        title: {"".join(found) for block in blocks for found in named.findall(block.text)}
        for title, blocks in BLOCKS.items()
    }
    assert {"readings"} <= topics[README]
    assert {"purchases", "recent", "sales", "letters", "visits"} <= topics[TOUR]
    for title, mine in topics.items():
        for other, theirs in topics.items():
            assert title == other or not mine & theirs, (title, other)


# ----------------------------------------------------------------- dying


def test_what_a_killed_worker_had_is_done_by_the_next_one(daemon: Daemon, open_place: Callable[..., Place]) -> None:
    place = open_place("Job queue", daemon.url)
    place.write_all()
    with Client(daemon.url) as client:
        place.type(place.sh("topics create mails").splitlines()[0])
        addresses = [f"{n}@example.org" for n in range(300)]
        client.append("mails", addresses)
        sent = place.root / "sent.db"

        def count() -> int:
            if not sent.exists():
                return 0
            with sqlite3.connect(sent, timeout=30) as database:
                known = database.execute("SELECT name FROM sqlite_master").fetchone()
                return int(database.execute("SELECT count(*) FROM sent").fetchone()[0]) if known else 0

        for least in (10, 60):
            worker = place.start("exec python worker.py")
            place.until(lambda least=least: count() > least)  # type: ignore[misc]
            place.kill(worker)
        assert count() < len(addresses), "it was killed in the middle"
        worker = place.start("exec python worker.py")
        place.until(lambda: client.state("mails").count == 0)
        with sqlite3.connect(sent) as database:
            found = [address for (address,) in database.execute("SELECT address FROM sent ORDER BY job")]
        assert found == addresses
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(LONG_S) == 0
        with pytest.raises(Exception, match="mails-dead"):
            client.state("mails-dead")


def test_killed_workers_leave_the_order_of_each_customer(daemon: Daemon, open_place: Callable[..., Place]) -> None:
    place = open_place("In order for each customer", daemon.url)
    place.write_all()
    place.type(place.sh("topics create charges").splitlines()[0].replace("--lease 5s", "--lease 1s"))
    done = place.root / "charges.txt"
    done.touch()
    with Client(daemon.url) as client:
        for amount in range(60):
            client.append("charges", [NewRecord(amount, tag=tag) for tag in ("ann", "bob", "cid")])
        for _ in range(2):
            before = len(done.read_text())
            worker = place.start(place.sh("python charge.py"))
            place.until(lambda before=before: len(done.read_text()) > before)  # type: ignore[misc]
            place.kill(worker)
        place.start(place.sh("python charge.py"))
        place.until(lambda: client.state("charges").count == 0)
    lines = list(dict.fromkeys(done.read_text().splitlines()))
    for tag in ("ann", "bob", "cid"):
        assert [line for line in lines if line.startswith(tag)] == [f"{tag} {amount}" for amount in range(60)]


def test_the_jobs_of_a_killed_command_come_again(daemon: Daemon, open_place: Callable[..., Place]) -> None:
    place = open_place("Job queue", daemon.url)
    with Client(daemon.url) as client:
        place.type(place.sh("topics create mails").splitlines()[0])
        place.type(place.sh("cat > send.sh"))
        addresses = [f"{n}@example.org" for n in range(40)]
        client.append("mails", addresses)
        sent = place.root / "sent.txt"

        def lines() -> list[str]:
            return sent.read_text().splitlines() if sent.exists() else []

        work = place.sh("topics queue work")
        killed = place.start(work)
        place.until(lambda: len(lines()) > 5)
        place.kill(killed)
        place.start(work)
        place.until(lambda: client.state("mails").count == 0)
        assert set(lines()) == set(addresses)


def test_a_killed_subscriber_misses_nothing(daemon: Daemon, open_place: Callable[..., Place]) -> None:
    place = open_place("Publish and subscribe", daemon.url)
    place.write_all()
    kills = 3
    with Client(daemon.url) as client:
        for n in range(kills):
            client.append("news", list(range(n * 300, n * 300 + 300)))
            seen = len(place.printed())
            subscriber = place.start("exec python subscriber.py")
            place.until(lambda seen=seen: len(place.printed()) > seen + 20)  # type: ignore[misc]
            place.kill(subscriber)
        client.append("news", ["the end"])
        place.start("exec python subscriber.py")
        place.until(lambda: "None the end" in place.printed())
    seen_again = Counter(place.printed())
    assert list(seen_again) == [f"None {n}" for n in range(300 * kills)] + ["None the end"]
    assert sum(seen_again.values()) <= 300 * kills + 1 + kills


def test_a_read_model_is_what_is_there_whoever_dies(daemon: Daemon, open_place: Callable[..., Place]) -> None:
    place = open_place("Read model", daemon.url)
    place.write_all()
    expected: dict[str, int] = {}

    def table() -> dict[str, int]:
        _, printed = place.type("python totals.py")
        return {name: int(total) for name, total in (line.split() for line in printed.splitlines() if "no" not in line)}

    with Client(daemon.url) as client:
        for n in range(3):
            model = place.start("exec python baskets.py")
            for k in range(6):
                name = f"basket.{k}"
                client.append(name, list(range(1, 200)))
                expected[name] = expected.get(name, 0) + 199 * 100
            place.until(lambda: bool(table()))
            place.kill(model)
            client.delete_topic(f"basket.{n}")  # for good
            del expected[f"basket.{n}"]
            client.delete_topic("basket.5")
            client.append("basket.5", [n])
            expected["basket.5"] = n
            client.append(f"basket.later-{n}", [7])
            expected[f"basket.later-{n}"] = 7
        place.start("exec python baskets.py")
        place.until(lambda: table() == expected, every_s=1)


def test_the_outbox_sends_everything_once_whoever_dies(daemon: Daemon, open_place: Callable[..., Place]) -> None:
    """Killed while the answer to a batch is held up, at any moment, and twice at once; the daemon dies as well."""
    with Proxy(daemon.port) as proxy, Client(daemon.url) as client:
        place = open_place("Outbox", daemon.url)
        place.write_all()
        place.type(place.sh("topics create orders"))
        number = 0

        def order(count: int) -> None:
            nonlocal number
            items = [f"item-{number + n}" for n in range(count)]
            number += count
            assert place.type("python shop.py " + " ".join(items))[0] == 0

        def waiting() -> int:
            with sqlite3.connect(place.root / "shop.db", timeout=30) as database:
                return int(database.execute("SELECT count(*) FROM outbox").fetchone()[0])

        order(3)
        # The batch arrives, and the relay never hears of it.
        relay = place.start("exec python relay.py", TOPICS_URL=proxy.url)
        place.until(lambda: waiting() == 0)
        proxy.fate = lambda _: Fate(down=0)
        proxy.cut()
        order(2)
        place.until(lambda: client.state("orders").head_seq > 3)
        place.kill(relay)
        assert waiting() == 2, "sent, and not deleted"

        # More has come meanwhile, and is not taken for a part of that batch.
        order(600)
        relays = [place.start("exec python relay.py") for _ in range(2)]
        place.until(lambda: client.state("orders").head_seq > 5)
        daemon.end(signal.SIGKILL)
        for relay in relays:
            place.kill(relay)
        daemon.start().close()
        place.start("exec python relay.py")
        place.until(lambda: waiting() == 0)
        assert [news["item"] for news in data_of(client, "orders")] == [f"item-{n}" for n in range(number)]


def test_mirrors_lose_and_repeat_nothing_whoever_dies(daemons: list[Daemon], open_place: Callable[..., Place]) -> None:
    a, b = daemons
    place = open_place("Multi-node mirror", a.url, A=a.url, B=b.url)
    place.write_all()
    to_b, to_a = "exec python mirror.py notes a $A b $B", "exec python mirror.py notes b $B a $A"
    loops = [place.sh("mirror.py notes a $A b $B"), place.sh("mirror.py notes b $B a $A")]
    assert all(run.removeprefix("exec ") in loop for run, loop in zip((to_b, to_a), loops, strict=True))
    place.type("\n".join(place.sh("create notes").splitlines()[:2]))
    written: dict[str, list[bytes]] = {"a": [], "b": []}
    with Client(a.url) as at_a, Client(b.url) as at_b:
        clients = {"a": at_a, "b": at_b}

        def write(node: str, count: int) -> None:
            """Data whose bytes a decoder would not keep; some name their node and some do not."""
            numbers = range(len(written[node]), len(written[node]) + count)
            fresh = [b'{"from" : "%s",  "n":%d.50, "n": -0}' % (node.encode(), n) for n in numbers]
            records = [
                NewRecord(msgspec.Raw(data), tag=f"t{n % 3}", node=node if n % 2 else None, meta={"k": str(n)})
                for n, data in enumerate(fresh)
            ]
            clients[node].append("notes", records)
            written[node] += fresh

        def found(node: str) -> list[Record]:
            return [item for item in clients[node].read("notes") if isinstance(item, Record)]

        def count(node: str) -> int:
            return clients[node].state("notes").count

        def all_there() -> bool:
            return all(count(node) >= len(written["a"]) + len(written["b"]) for node in "ab")

        write("a", 1100)
        write("b", 300)
        running = [place.start(to_b), place.start(to_a), place.start(to_a)]
        place.until(lambda: count("b") > 300)
        for mirror in running:
            place.kill(mirror)
        write("a", 700)
        running = [place.start(text) for text in loops]
        place.until(lambda: count("b") > 1500)
        b.end(signal.SIGKILL)
        write("a", 50)
        b.start().close()
        write("b", 50)
        place.until(all_there)

        # A last one each way: whatever went round in circles would be there before it.
        write("a", 1)
        write("b", 1)
        place.until(all_there)
        for node in "ab":
            records = found(node)
            assert len(records) == len(written["a"]) + len(written["b"])
            for origin in "ab":
                theirs = [record for record in records if (record.node or node) == origin]
                assert [bytes(record.raw) for record in theirs] == written[origin]
                assert {record.tag for record in theirs} == {"t0", "t1", "t2"}
                assert all(record.meta.keys() - {"mirror"} == {"k"} for record in theirs)


def test_lines_are_shipped_once_whoever_dies(daemon: Daemon, open_place: Callable[..., Place]) -> None:
    place = open_place("Log shipping", daemon.url)
    place.type(place.sh("cat > ship.sh"))
    lines: list[str] = []

    def log(count: int) -> None:
        fresh = ["" if n % 50 == 7 else f'line {len(lines) + n} "\\ \t \u2028 ä' for n in range(count)]
        with (place.root / "app.log").open("a") as file:
            file.writelines(line + "\n" for line in fresh)
        lines.extend(fresh)

    log(8000)
    shipping = place.sh("./ship.sh app.log")
    with Client(daemon.url) as client:

        def shipped() -> int:
            try:
                return client.state("shipped-log").head_seq
            except Exception:
                return 0

        first = place.start(shipping)
        place.until(lambda: shipped() > 0)
        place.kill(first)
        log(3000)
        place.start(shipping)
        place.until(lambda: shipped() > 1000)
        daemon.end(signal.SIGKILL)
        log(3000)
        daemon.start().close()
        place.until(lambda: shipped() >= len(lines))
        log(1)
        place.until(lambda: shipped() >= len(lines))
        assert data_of(client, "shipped-log") == lines


# ----------------------------------------------------------------- conditions


def ended(jobs: list[subprocess.Popen[bytes]]) -> list[int]:
    """The exit codes of programs that end by themselves, ascending."""
    return sorted(job.wait(LONG_S) for job in jobs)


def test_an_account_is_never_overdrawn(daemon: Daemon, open_place: Callable[..., Place]) -> None:
    place = open_place("Event-sourced aggregate", daemon.url)
    place.write_all()
    with Client(daemon.url) as client:
        client.append("account-7", [{"amount": 4}])
        assert ended([place.start("python account.py -1") for _ in range(8)]) == [0] * 4 + [1] * 4
        assert [event["amount"] for event in data_of(client, "account-7")] == [4, -1, -1, -1, -1]


def test_an_account_goes_on_behind_seqs_without_an_event(daemon: Daemon, open_place: Callable[..., Place]) -> None:
    place = open_place("Event-sourced aggregate", daemon.url)
    place.write_all()
    with Client(daemon.url) as client:
        client.append("account-7", [{"amount": 4}, {"amount": 100}])
        client.delete_records("account-7", after_seq=1)
        assert ended([place.start("python account.py -5")]) == [1]
        assert ended([place.start("python account.py -3")]) == [0]
        assert [event["amount"] for event in data_of(client, "account-7")] == [4, -3]


def test_a_leader_that_was_away_writes_nothing_more(daemon: Daemon, open_place: Callable[..., Place]) -> None:
    place = open_place("One leader", daemon.url)
    place.write_all()
    with Client(daemon.url) as client:
        client.create("decisions")

        def decisions() -> list[str]:
            return data_of(client, "decisions")

        ann = place.start("exec python leader.py ann 1000")
        place.until(lambda: len(decisions()) > 2)
        os.killpg(ann.pid, signal.SIGSTOP)
        others = [place.start(f"exec python leader.py {name} 5") for name in ("bob", "cid", "dan")]
        place.until(lambda: decisions()[-1].split()[0] != "ann")
        os.killpg(ann.pid, signal.SIGCONT)
        assert ended([ann]) == [1]
        assert 0 in ended(others), "the newest has written to the end"
        leaders = data_of(client, "elections")
        tokens = [leaders.index(decision.split()[0]) for decision in decisions()]
        assert tokens == sorted(tokens), "nobody writes after a newer one"


def test_a_name_is_given_once(daemon: Daemon, open_place: Callable[..., Place]) -> None:
    place = open_place("Unique user names", daemon.url)
    place.write_all()
    programs = [place.start(f"python register.py {name} {i}@x") for i in range(4) for name in ("ann", "bob")]
    assert ended(programs) == [0] * 2 + [1] * 6
    with Client(daemon.url) as client:
        assert sorted(user["name"] for user in data_of(client, "users")) == ["ann", "bob"]


def test_state_and_event_are_stored_together_and_once_whoever_dies(
    daemon: Daemon, open_place: Callable[..., Place]
) -> None:
    """All writers are killed in the middle of their race and do it again; then the daemon dies under them."""
    place = open_place("Outbox without an outbox", daemon.url)
    place.write_all()
    place.type(place.sh("topics create levels"))
    changes = {"delivery-1": 100} | {f"sale-{n}": -n for n in range(1, 9)}
    with Client(daemon.url) as client:

        def events() -> list[dict[str, Any]]:
            return data_of(client, "movements")

        def race() -> list[subprocess.Popen[bytes]]:
            return [place.start(f"python stock.py {name} apples {change}") for name, change in changes.items()]

        writers = race()
        place.until(lambda: len(events()) > 1)
        for writer in writers:
            place.kill(writer)
        seen = len(events())
        writers = race()
        place.until(lambda: len(events()) > seen or all(writer.poll() is not None for writer in writers))
        daemon.end(signal.SIGKILL)
        daemon.start().close()
        assert ended(writers) == [0] * len(writers)

        left = 0
        for event in events():
            left += event["change"]
            assert event["left"] == left, "decided by the state before it"
        assert {event["movement"]: event["change"] for event in events()} == changes
        assert len(events()) == len(changes), "each movement once"
        assert data_of(client, "levels") == [{"item": "apples", "left": event["left"]} for event in events()]


# ----------------------------------------------------------------- consumers


def test_a_backfill_does_everything_again_whoever_dies(daemon: Daemon, open_place: Callable[..., Place]) -> None:
    """It begins while the owner has records in hand, one instance dies after it, and new records come all the time."""
    place = open_place("Backfill", daemon.url)
    place.write_all()
    count = 0

    def append(client: Client) -> None:
        nonlocal count
        client.append("deliveries", [100 * n for n in range(count + 1, count + 501)])
        count += 500

    def bills() -> dict[int, int]:
        _, printed = place.type("python show.py")
        rows = (line.split() for line in printed.splitlines() if line[0].isdigit())
        return {int(seq): int(gross) for seq, gross in rows}

    def rate(percent: int) -> None:
        place.type(f"echo {percent} > rate.new; mv rate.new rate.txt")

    with Client(daemon.url) as client:
        client.create("deliveries")
        append(client)
        rate(10)
        instances = [place.start("exec python bills.py") for _ in range(2)]
        place.until(lambda: len(bills()) > 100)
        rate(20)
        append(client)
        assert place.type("python backfill.py deliveries bills 0") == (0, "")
        place.until(lambda: bills().get(1) == 120)
        place.kill(instances[0])
        append(client)
        place.until(lambda: bills() == {seq: 120 * seq for seq in range(1, count + 1)}, every_s=1)
