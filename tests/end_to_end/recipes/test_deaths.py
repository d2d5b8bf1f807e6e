"""Programs of the recipes are killed at any moment; nothing is lost or done twice."""

from __future__ import annotations

import signal
import sqlite3
from collections import Counter
from collections.abc import Callable

import msgspec
import pytest

from tests.client.proxy import Fate, Proxy
from tests.conformance.client import Daemon
from tests.end_to_end.recipes.terminals import LONG_S, Place, data_of
from topics.client import Client, NewRecord, Record

pytestmark = pytest.mark.slow


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

        # A last record each way: records that went round in circles would be there before it.
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
