"""Semantics 5: routers and their copies after restarts and kills."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conformance.client import CLASSES, Client, Daemon, checkpoint, fresh_name, until
from tests.conformance.router_client import connect_topics, listed, put_router, router_of
from tests.conformance.router_pairs import (
    LOSSES,
    RECORDS,
    Pair,
    Reading,
    becomes,
    blocked,
    chain,
    diamond,
    everything,
    has,
    has_head,
    lose_the_class,
    lose_the_instance,
    lose_the_router,
    lose_the_topic,
    lose_to_a_ttl,
    mirror,
    paired,
    settle,
    tagged_pair,
)


def ends_with(client: Client, topic: str, *data: Any) -> None:
    becomes(lambda: everything(client, topic).data[-len(data) :], list(data))


@dataclass
class Built:
    """What a scene has made: the dests to look at, and where to go on."""

    dests: list[str]
    root: str | None = None
    """What is appended here reaches each of `reached` once."""
    reached: list[str] = field(default_factory=list)
    routers: list[str] = field(default_factory=list)
    lossy: bool = False
    """Whether the source may lose records when the daemon is killed."""


def built(*pairs: Pair, lossy: bool = False) -> Built:
    dests = [pair.dest for pair in pairs]
    return Built(dests, pairs[0].source, dests, [pair.router for pair in pairs], lossy)


def scene_of_class(source_class: str) -> Callable[[Client], Built]:
    def build(client: Client) -> Built:
        first = tagged_pair(client, {"durability": source_class}, {"durability": "fsync"})
        pairs = [first]
        for dest_class in ("memory", "disk"):
            pair = Pair(client, first.source, fresh_name("dest"), fresh_name("router"))
            client.put_topic(pair.dest, durability=dest_class)
            put_router(client, pair.router, pair.source, pair.dest, begin="earliest")
            pair.has("a", "b", "ab", "c")
            pairs.append(pair)
        return built(*pairs, lossy=source_class in ("ephemeral", "memory"))

    return build


def scene_of_loss(lose: Callable[[Client, Pair], None]) -> Callable[[Client], Built]:
    def build(client: Client) -> Built:
        pair = tagged_pair(client, dest={"durability": "fsync"})
        pair.settle()
        lose(client, pair)
        if lose in (lose_the_topic, lose_the_instance, lose_the_router):
            return Built([pair.dest])
        return built(pair, lossy=lose is lose_the_class)

    return build


def scene_of_options(client: Client) -> Built:
    others: list[dict[str, Any]] = [{"preserve_tag": False}, {"preserve_node": False}, {"guarantee": "exactly_once"}]
    pairs = [paired(client, dest={"durability": "fsync"}, filter=["tag", "Glob", "a*"])]
    for options in others:
        pair = Pair(client, pairs[0].source, fresh_name("dest"), fresh_name("router"))
        put_router(client, pair.router, pair.source, pair.dest, **options)
        pairs.append(pair)
    client.append(pairs[0].source, records=RECORDS)
    client.tagged(pairs[0].source, "a", "b", "ab")
    for pair in pairs:
        pair.settle()
    reached = built(*pairs)
    reached.reached = reached.dests[1:]
    return reached


def scene_of_a_chain(client: Client) -> Built:
    topics = chain(client, 4)
    client.tagged(topics[0], "a", "b", "c")
    has(client, topics[-1], "a", "b", "c")
    client.delete_records(topics[1], match="b")
    return Built(topics[1:], topics[0], topics[1:])


def scene_of_a_chain_without_its_middle(client: Client) -> Built:
    topics = chain(client, 4, durability="fsync")
    client.append(topics[0], *range(10))
    has(client, topics[-1], *range(10))
    client.delete_topic(topics[1])
    client.delete_topic(topics[0])
    return Built(topics[2:], topics[2], topics[2:])


def scene_of_deleted_and_evicted_copies(client: Client) -> Built:
    first = tagged_pair(client)
    client.delete_records(first.dest, match="b")
    client.delete_records(first.dest, before_seq=2)
    second = Pair(client, first.source, fresh_name("dest"), fresh_name("router"))
    client.put_topic(second.dest, cap_records=2, durability="fsync")
    put_router(client, second.router, second.source, second.dest, begin="earliest")
    second.has("ab", "c")
    return built(first, second)


def scene_of_a_diamond(client: Client) -> Built:
    topics, routers = diamond(client, guarantee="exactly_once")
    client.append(topics[0], *range(20))
    settle(client, *routers)
    return Built(topics[1:], topics[0], topics[1:], routers)


def scene_of_a_ring(client: Client) -> Built:
    topics = [fresh_name("ring") for _ in range(3)]
    routers = connect_topics(client, *topics) + connect_topics(client, topics[-1], topics[0], allow_cycle=True)
    for number, topic in enumerate(topics):
        client.append(topic, number)
    settle(client, *routers)
    return Built(topics, topics[1], topics, routers)


def scene_of_a_mirror(client: Client) -> Built:
    topics, routers = mirror(client, 3, guarantee="exactly_once")
    for number, topic in enumerate(topics):
        client.append(topic, number, f"{number} again")
    settle(client, *routers)
    return Built(topics, topics[2], topics, routers)


def scene_of_a_queue(client: Client) -> Built:
    pair = tagged_pair(client, {"type": "queue"}, {"type": "queue"})
    pair.settle()
    client.delete_records(pair.source, before_seq=2)
    client.delete_records(pair.dest, before_seq=3)
    return built(pair)


def scene_of_many_and_large_records(client: Client) -> Built:
    pair = paired(client, dest={"durability": "fsync"})
    pair.append(*range(3000))
    pair.append(*["x" * 200_000] * 3)
    has_head(client, pair.dest, 3003)
    pair.settle()
    return built(pair)


def scene_of_direct_appends(client: Client) -> Built:
    pair = paired(client)
    for number in range(5):
        pair.append(f"copy {number}")
        client.append(pair.dest, f"direct {number}")
    has_head(client, pair.dest, 10)
    pair.settle()
    return built(pair)


def scene_of_holes(client: Client) -> Built:
    first = paired(client, dest={"cap_bytes": 1000, "discard": "reject"})
    first.append("a", "x" * 2000, "b")
    first.has("a", "b")
    first.settle()
    return built(first)


def scene_of_holes_after_a_loss(client: Client) -> Built:
    pair = blocked(client, *range(3, 8))
    lose_to_a_ttl(client, pair.source)
    pair.append(8)
    client.put_topic(pair.dest, cap_records=0)
    pair.has(1, 2, 8)
    pair.settle()
    return built(pair)


def scene_of_a_fan(client: Client) -> Built:
    source, dests = fresh_name("source"), [fresh_name("fan") for _ in range(20)]
    routers = [connect_topics(client, source, dest)[0] for dest in dests]
    client.append(source, *range(50))
    settle(client, *routers)
    return Built(dests, source, dests, routers)


def scene_of_a_filter_of_many(client: Client) -> Built:
    pair = paired(client, filter="a", dest={"durability": "fsync"})
    tags = ["a" if number * 7919 % 13 < 5 else "b" for number in range(2500)]
    client.append(pair.source, records=[{"data": number, "tag": tag} for number, tag in enumerate(tags)])
    pair.has(*[number for number, tag in enumerate(tags) if tag == "a"])
    pair.settle()
    return Built([pair.dest], routers=[pair.router])


def scene_of_ends_made_anew(client: Client) -> Built:
    pairs = [tagged_pair(client), tagged_pair(client)]
    for pair, end in zip(pairs, ("source", "dest"), strict=True):
        client.delete_topic(pair.source if end == "source" else pair.dest)
        put_router(client, pair.router, pair.source, pair.dest, begin="earliest")
        pair.append("new")
    pairs[0].has("a", "b", "ab", "c", "new")
    pairs[1].has("a", "b", "ab", "c", "new")
    for pair in pairs:
        pair.settle()
    anew = built(*pairs)
    anew.reached = [pairs[0].dest]
    return anew


def scene_of_changed_classes(client: Client) -> Built:
    pairs = [tagged_pair(client, dest={"durability": "ephemeral"})]
    client.put_topic(pairs[0].dest, durability="disk")
    second = Pair(client, pairs[0].source, fresh_name("dest"), fresh_name("router"))
    client.put_topic(second.dest, durability="memory")
    put_router(client, second.router, second.source, second.dest, begin="earliest")
    second.has("a", "b", "ab", "c")
    client.put_topic(second.dest, durability="fsync")
    return built(*pairs, second)


SCENES: dict[str, Callable[[Client], Built]] = {
    **{f"from-{name}": scene_of_class(name) for name in CLASSES},
    **{how.__name__.replace("_", "-"): scene_of_loss(how) for how in LOSSES},
    "options": scene_of_options,
    "chain": scene_of_a_chain,
    "chain-without-its-middle": scene_of_a_chain_without_its_middle,
    "deleted-and-evicted-copies": scene_of_deleted_and_evicted_copies,
    "diamond": scene_of_a_diamond,
    "ring": scene_of_a_ring,
    "mirror": scene_of_a_mirror,
    "queue": scene_of_a_queue,
    "many-and-large-records": scene_of_many_and_large_records,
    "direct-appends": scene_of_direct_appends,
    "holes": scene_of_holes,
    "holes-after-a-loss": scene_of_holes_after_a_loss,
    "changed-classes": scene_of_changed_classes,
    "fan": scene_of_a_fan,
    "filter-of-many": scene_of_a_filter_of_many,
    "ends-made-anew": scene_of_ends_made_anew,
}
EAGER = {
    "checkpoint_ms": 100,
    "segment_max_events": 8,
    "reclaim_ms": 100,
    "relocate_ms": 100,
    "hot_retain_segments": 1,
    "wal_file_bytes": 1 << 20,
}


class Life:
    """A daemon that has lived once and lives again, and what its topics and routers were before."""

    def __init__(self, root: Path, how: str) -> None:
        self.was_killed = how != "stopped"
        self.how = how
        self.daemon = Daemon(root, **(EAGER if how == "compacted-and-killed" else {}))

    def live(self) -> None:
        client = self.daemon.start()
        self.scenes = {name: build(client) for name, build in SCENES.items()}
        self.full = blocked(client, 3, 4, 5, dest={"durability": "fsync"})
        self.overtaken = blocked(client, *range(3, 8), dest={"durability": "fsync"})
        lose_to_a_ttl(client, self.overtaken.source)
        self.overtaken.append(8)
        self.tagged = tagged_pair(client, dest={"durability": "fsync"})
        # What may have been on its way while the others were built is there.
        dests = [dest for scene in self.scenes.values() for dest in scene.dests]
        self.before = {dest: everything(client, dest) for dest in dests}
        self.states = {dest: client.state(dest, touch="false") for dest in dests}
        self.routers = {entry["router"]: entry for entry in listed(client)}
        if self.how == "compacted-and-killed":
            checkpoint(client)
            checkpoint(client)
        client.close()
        if self.was_killed:
            client = self.daemon.restart(signal.SIGKILL)
            client.close()
        self.daemon.end(signal.SIGKILL if self.was_killed else signal.SIGTERM)
        self.client = self.daemon.start()

    def keeps(self, dest: str) -> bool:
        """Whether its class promises that everything is there."""
        promised = ["disk", "fsync"] if self.was_killed else ["memory", "disk", "fsync"]
        return self.states[dest]["config"]["durability"] in promised

    def check_scene(self, name: str) -> None:
        scene, client = self.scenes[name], self.client
        for dest in scene.dests:
            before, after = self.before[dest], everything(client, dest)
            if not self.keeps(dest):
                # What may be gone is unchanged if it is not, and its seqs are not used again.
                assert after.head >= before.head
                there = {record["$seq"]: record for record in before.records}
                assert all(there.get(record["$seq"], record) == record for record in after.records)
                continue
            if scene.lossy:
                # What the source lost in a crash is announced after everything else.
                assert all(gap["gap_from"] > before.head for gap in after.tombstones[len(before.tombstones) :])
                after.tombstones = after.tombstones[: len(before.tombstones)]
                after.head = before.head
            assert after == before
            state = client.state(dest, touch="false")
            for figure in ("epoch", "count", "bytes", "earliest_seq", "config"):
                assert state[figure] == self.states[dest][figure]
        for router in filter(lambda name: self.keeps(self.routers[name]["dest"]), scene.routers):
            was, found = self.routers[router], router_of(client, router)
            assert found["forwarded_total"] == was["forwarded_total"]
            assert found["cursor_seq"] >= was["cursor_seq"]
            assert scene.lossy or found["cursor_seq"] == was["cursor_seq"]
        if scene.root is not None:
            self.check_it_goes_on(scene, scene.root)

    def check_it_goes_on(self, scene: Built, root: str) -> None:
        self.client.append(root, "after")
        self.client.append(root, "at last")
        for dest in scene.reached:
            if dest == root or self.keeps(dest):
                expected = [*self.before[dest].data, "after", "at last"]
                has(self.client, dest, *expected[-self.states[dest]["config"]["cap_records"] :])
            else:
                ends_with(self.client, dest, "after", "at last")

    def check_a_router_to_a_full_dest(self) -> None:
        pair = replace(self.full, client=self.client)
        pair.has(1, 2)
        found = router_of(self.client, pair.router)
        assert (found["forwarded_total"], found["cursor_seq"], found["lag"]) == (2, 2, 3)
        self.client.put_topic(pair.dest, cap_records=0)
        pair.has(1, 2, 3, 4, 5)

    def check_what_was_lost_before_is_announced(self) -> None:
        pair = replace(self.overtaken, client=self.client)
        self.client.put_topic(pair.dest, cap_records=0)
        pair.has(1, 2, 8)
        assert {reason for _, _, reason in everything(self.client, pair.dest).gaps} == {"source_trim"}
        assert pair.settle()["forwarded_total"] == 3

    def check_copies_are_deleted_by_their_tags(self) -> None:
        pair = replace(self.tagged, client=self.client)
        assert self.client.delete_records(pair.dest, match=["tag", "Glob", "a*"])["deleted"] == 2
        assert self.client.delete_records(pair.dest, match="none")["deleted"] == 0
        pair.has("b", "c")
        assert self.client.state(pair.dest)["count"] == 2
        assert everything(self.client, pair.source).data == ["a", "b", "ab", "c"]


@pytest.mark.parametrize(
    "how",
    [
        pytest.param("stopped", marks=pytest.mark.more),
        pytest.param("killed", marks=pytest.mark.more),
        "compacted-and-killed",
    ],
)
def test_copies_are_as_they_were_after_a_restart_and_forwarding_goes_on(tmp_path: Path, how: str) -> None:
    life = Life(tmp_path, how)
    try:
        life.live()
        checks: dict[str, Callable[[], None]] = {name: partial(life.check_scene, name) for name in SCENES}
        for check in (
            life.check_a_router_to_a_full_dest,
            life.check_what_was_lost_before_is_announced,
            life.check_copies_are_deleted_by_their_tags,
        ):
            checks[check.__name__] = check
        failures = {}
        for name, check in checks.items():
            try:
                check()
            except AssertionError as error:
                failures[name] = str(error)[:2000]
        assert not failures
    finally:
        life.daemon.kill()


def kill_under_load(
    client: Client, source: str, dest: str, meanwhile: Callable[[int], object] = lambda head: None
) -> Reading:
    """What was seen of the dest before the daemon was killed in the middle of appends to the source."""

    def write(writer: Client) -> None:
        try:
            for start in range(0, 10**6, 5):
                writer.append(source, *range(start, start + 5))
        except httpx.HTTPError:
            # It was killed.
            return

    start = client.read(dest)["head_seq"]

    def has_passed_enough() -> bool:
        head = client.read(dest)["head_seq"]
        meanwhile(head)
        return writing.done() or head > start + 150

    with Client(client.daemon) as writer, ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write, writer)
        until(has_passed_enough)
        seen = everything(client, dest)
        client.daemon.end(signal.SIGKILL)
        writing.result(60)
    client.close()
    return seen


@pytest.mark.parametrize(
    ("source_class", "dest_class"),
    [("disk", "disk"), ("disk", "fsync"), ("fsync", "fsync"), ("memory", "fsync")],
)
def test_a_kill_while_records_pass_loses_none_and_repeats_none(
    tmp_path: Path, source_class: str, dest_class: str
) -> None:
    daemon = Daemon(tmp_path)
    try:
        client = daemon.start()
        client.put_topic("source", durability=source_class)
        client.put_topic("dest", durability=dest_class)
        put_router(client, "router", "source", "dest")
        for _ in range(2):
            seen = kill_under_load(client, "source", "dest")
            client = daemon.start()
            settle(client, "router")
            reading = everything(client, "dest")
            assert reading.records[: len(seen.records)] == seen.records
            if source_class == "memory":
                assert reading.data[-5:] == everything(client, "source").data[-5:]
                assert all(later in (former + 1, 0) for former, later in itertools.pairwise(reading.data))
            else:
                assert reading.data == everything(client, "source").data
                assert reading.tombstones == []
    finally:
        daemon.kill()


def test_a_kill_while_a_source_is_emptied_behind_its_router_loses_no_copy(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, **EAGER)
    try:
        client = daemon.start()
        put_router(client, "router", "source", "dest")
        client.put_topic("dest", durability="fsync")
        # The two count alike: what is up to the head of the dest has been forwarded.
        seen = kill_under_load(client, "source", "dest", lambda head: client.delete_records("source", before_seq=head))
        client = daemon.start()
        settle(client, "router")
        reading = everything(client, "dest")
        assert reading.records[: len(seen.records)] == seen.records
        assert (reading.data, reading.tombstones) == (list(range(reading.head)), [])
        assert reading.head == client.state("source")["head_seq"]
        client.delete_topic("source")
        client = daemon.restart(signal.SIGKILL)
        assert everything(client, "dest") == reading
    finally:
        daemon.kill()


@pytest.mark.parametrize("shape", ["diamond", "mirror"])
def test_a_kill_while_records_pass_on_several_ways_repeats_none(tmp_path: Path, shape: str) -> None:
    daemon = Daemon(tmp_path)
    try:
        client = daemon.start()
        topics, routers = (
            diamond(client, guarantee="exactly_once")
            if shape == "diamond"
            else mirror(client, 3, guarantee="exactly_once")
        )
        seen = kill_under_load(client, topics[0], topics[-1])
        client = daemon.start()
        settle(client, *routers)
        reading = everything(client, topics[-1])
        assert reading.records[: len(seen.records)] == seen.records
        assert sorted(reading.data) == sorted(everything(client, topics[0]).data)
    finally:
        daemon.kill()


@pytest.mark.parametrize("middle", ["memory", "ephemeral"])
def test_a_kill_while_records_pass_a_weak_topic_repeats_none_and_announces_what_is_lost(
    tmp_path: Path, middle: str
) -> None:
    daemon = Daemon(tmp_path)
    try:
        client = daemon.start()
        client.put_topic("middle", durability=middle)
        client.put_topic("last", durability="fsync")
        routers = connect_topics(client, "first", "middle", "last", guarantee="exactly_once")
        seen = kill_under_load(client, "first", "last")
        client = daemon.start()
        client.append("first", "after")
        becomes(lambda: everything(client, "last").data[-1], "after")
        settle(client, *routers)
        reading = everything(client, "last")
        assert reading.records[: len(seen.records)] == seen.records
        numbers = [record["data"] for record in reading.records][:-1]
        assert len(set(numbers)) == len(numbers)
        expected = everything(client, "first").data[:-1]
        assert set(numbers) <= set(expected)
        assert set(numbers) == set(expected) or reading.tombstones
    finally:
        daemon.kill()
