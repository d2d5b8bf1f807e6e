"""`Consumers` against a model: a list of dicts, without buckets, shared generations and dumps.

Owners come, renew, are late and lie about their generation; positions move both ways; consumers are deleted and made
again; each decided event is encoded as a frame and decoded again before it is applied; dumps are loaded at any time.
"""

from __future__ import annotations

from typing import Any

import cbor2
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from topics.consumers.consumer_events import ConsumerEvent, PutEvent, event_from_wire
from topics.consumers.consumers import Consumer, Consumers
from topics.errors import ApiError

NAMES = st.sampled_from(["a", "b", "c"])
OWNERS = st.sampled_from(["x", "y"])
FILTERS = st.sampled_from(['["tag","Eq","x"]', '["data","/n","Eq",1e400]', '["data","/n","Eq",1.0]'])
"""Decoding the numbers of the last two would change their text."""
LEASE_MS = 10
TOPIC = "t"


class ConsumerMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.consumers = Consumers(TOPIC)
        self.model: dict[str, dict[str, Any]] = {}
        self.head = 0
        self.now = 1000
        self.ts = 5000
        self.generations: list[int] = []
        """All generations that were given out."""
        self.part: list[Any] = [0, []]
        self.since: list[tuple[dict[str, Any], int]] = []
        """The frames since that part."""

    def happen(self, event: ConsumerEvent | None) -> None:
        if event is None:
            return
        wire = cbor2.loads(cbor2.dumps(event.to_wire(), canonical=True))
        self.since.append((wire, self.ts))
        assert event_from_wire(wire, self.ts) == event
        self.consumers.apply(event)

    def allowed(self, name: str, generation: int | None) -> bool:
        known = self.model[name]
        if generation is None:
            return known["owner"] is None
        return bool(generation == known["generation"])

    def refused(self, code: str, decide: Any) -> None:
        with pytest.raises(ApiError) as caught:
            decide()
        assert caught.value.code == code

    # -- rules -------------------------------------------------------------------------------------------------------

    @rule(more=st.integers(0, 5), passes=st.integers(0, 15))
    def time_passes(self, more: int, passes: int) -> None:
        self.head += more
        self.now += passes
        self.ts += passes

    @rule(
        name=NAMES,
        seq=st.integers(0, 20),
        ttl=st.sampled_from([None, 0, 7]),
        kept=FILTERS | st.none(),
        keeps=st.booleans(),
    )
    def put(self, name: str, seq: int, ttl: int | None, kept: str | None, keeps: bool) -> None:
        seq = min(seq, self.head)
        event = self.consumers.decide_put(name, lambda: seq, ttl, kept, self.now, keeps_filter=keeps)
        known = self.model.get(name)
        if known is None:
            kept = None if keeps else kept
            assert event == PutEvent(name, self.now, seq, ttl or 0, kept)
            self.model[name] = {
                "seq": seq, "ttl": ttl or 0, "owner": None, "generation": 0, "deadline": 0, "ts": None,
                "used": self.now, "filter": kept,
            }  # fmt: skip
        elif event is not None:
            known.update(ttl=known["ttl"] if ttl is None else ttl, used=self.now)
            known["filter"] = known["filter"] if keeps else kept
        else:
            assert ttl in (None, known["ttl"])
            assert keeps or kept == known["filter"]
        self.happen(event)

    @rule(
        name=NAMES, seq=st.integers(0, 30), behind=st.integers(-2, 2), claims=st.sampled_from(["none", "own", "wrong"])
    )
    def move(self, name: str, seq: int, behind: int, claims: str) -> None:
        if name not in self.model:
            self.refused("consumer_not_found", lambda: self.consumers.decide_commit(name, 0, None, 9, 0, 0))
            return
        known = self.model[name]
        generation = {"none": None, "own": known["generation"], "wrong": known["generation"] + behind}[claims]
        for kind in ("commit", "seek"):

            def decide(kind: str = kind) -> ConsumerEvent | None:
                if kind == "commit":
                    return self.consumers.decide_commit(name, seq, generation, self.head, self.now, self.ts)
                return self.consumers.decide_seek(name, seq, generation, self.head, self.now)

            if not self.allowed(name, generation):
                self.refused("fenced", decide)
            elif seq > self.head:
                self.refused("invalid_request", decide)
            else:
                event = decide()
                assert (event is not None) == (seq > known["seq"] if kind == "commit" else seq != known["seq"])
                if event is not None:
                    known.update(seq=seq, used=self.now)
                    if kind == "commit":
                        known["ts"] = self.ts
                self.happen(event)

    @rule(name=NAMES, owner=OWNERS)
    def acquire(self, name: str, owner: str) -> None:
        def decide() -> ConsumerEvent:
            return self.consumers.decide_acquire(name, owner, LEASE_MS, self.now)

        known = self.model.get(name)
        if known is None:
            self.refused("consumer_not_found", decide)
        elif known["owner"] not in (None, owner) and self.now <= known["deadline"]:
            self.refused("consumer_owned", decide)
        else:
            event = decide()
            if known["owner"] != owner:
                known["generation"] = max(self.generations, default=0) + 1
                self.generations.append(known["generation"])
            known.update(owner=owner, deadline=self.now + LEASE_MS, used=self.now)
            self.happen(event)

    @rule(name=NAMES, generation=st.integers(0, 5))
    def release(self, name: str, generation: int) -> None:
        known = self.model.get(name)
        if known is None:
            return
        event = self.consumers.decide_release(name, generation, self.now)
        assert (event is not None) == (known["owner"] is not None and known["generation"] == generation)
        if event is not None:
            known.update(owner=None, used=self.now)
        self.happen(event)

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        event = self.consumers.decide_delete(name, self.now)
        assert (event is not None) == (self.model.pop(name, None) is not None)
        self.happen(event)

    @rule()
    def checkpoint(self) -> None:
        self.part, self.since = self.consumers.dump(cbor2.dumps), []

    @rule()
    def restart(self) -> None:
        self.consumers = Consumers.load(TOPIC, cbor2.loads(cbor2.dumps(self.part)), cbor2.loads)
        for wire, ts in self.since:
            self.consumers.apply(event_from_wire(wire, ts))

    # -- what holds --------------------------------------------------------------------------------------------------

    @invariant()
    def is_as_the_model(self) -> None:
        def row(consumer: Consumer) -> dict[str, Any]:
            return {
                "seq": consumer.seq, "ttl": consumer.ttl_ms, "owner": consumer.owner, "ts": consumer.last_commit_ts,
                "generation": consumer.generation, "used": consumer.used_at, "filter": consumer.filter,
            }  # fmt: skip

        expected = {
            name: {key: value for key, value in known.items() if key != "deadline"}
            for name, known in sorted(self.model.items())
        }
        assert {consumer.name: row(consumer) for consumer in self.consumers} == expected
        assert self.consumers.lowest_seq == min((known["seq"] for known in self.model.values()), default=None)
        assert self.consumers.last_generation == max(self.generations, default=0)
        assert len(set(self.generations)) == len(self.generations)
        assert self.consumers.filter_size == sum(len(known["filter"] or "") for known in self.model.values())


TestConsumers = ConsumerMachine.TestCase
TestConsumers.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_a_consumer_that_is_made_again_never_has_a_generation_that_its_old_owner_knows() -> None:
    consumers = Consumers(TOPIC)
    for _ in range(2):
        event = consumers.decide_put("c", lambda: 0, None, None, 0, keeps_filter=True)
        assert event is not None
        consumers.apply(event)
        consumers.apply(consumers.decide_acquire("c", "x", 10, 0))
        generation = consumers.get("c").generation
        gone = consumers.decide_delete("c", 0)
        assert gone is not None
        consumers.apply(gone)
    assert generation == 2


@pytest.mark.parametrize("wrong", [["tag", "Eq", "x"], '["tag","Ne","x"]', "x", 1])
def test_an_invalid_filter_is_refused_in_frames_and_parts(wrong: Any) -> None:
    wire = {"op": "put", "consumer": "c", "at": 1, "seq": 0, "ttl_ms": 0, "filter": wrong}
    with pytest.raises(ValueError, match="consumer"):
        event_from_wire(wire, 1)
    with pytest.raises(ValueError, match="consumer"):
        Consumer.load(["c", 0, 0, wrong, None, None, 0, 0, 0])


def test_pages_are_in_the_order_of_names_and_say_whether_there_is_more() -> None:
    consumers = Consumers(TOPIC)
    for name in ("b2", "a", "b1", "c", "b3"):
        consumers.apply(PutEvent(name, 0, 0, 0, None))

    def names(prefix: str, after: str | None, most: int) -> tuple[list[str], bool]:
        found, more = consumers.page(prefix, after, most)
        return [consumer.name for consumer in found], more

    assert names("", None, 9) == (["a", "b1", "b2", "b3", "c"], False)
    assert names("b", None, 2) == (["b1", "b2"], True)
    assert names("b", "b2", 2) == (["b3"], False)
    assert names("b", "a", 1) == (["b1"], True)
    assert names("b", "c", 9) == ([], False)


def test_only_what_has_changed_is_encoded_again() -> None:
    consumers, encoded = Consumers(TOPIC), []

    def encode(rows: Any) -> bytes:
        encoded.append([row[0] for row in rows])
        return cbor2.dumps(rows)

    for number in range(1000):
        consumers.apply(PutEvent(f"c{number}", 0, 0, 0, None))
    consumers.dump(encode)
    encoded.clear()
    assert consumers.dump(encode) == consumers.dump(encode)
    assert encoded == []
    event = consumers.decide_commit("c7", 0, None, 5, 0, 0) or consumers.decide_seek("c7", 3, None, 5, 0)
    assert event is not None
    consumers.apply(event)
    part = consumers.dump(encode)
    assert len(encoded) == 1
    assert "c7" in encoded[0]
    assert len(encoded[0]) < 100
    assert Consumers.load(TOPIC, part, cbor2.loads).get("c7").seq == 3


@pytest.mark.parametrize(
    "dump",
    [
        None,
        [],
        [1],
        [-1, []],
        [0, [cbor2.dumps([["c", 0, 0, None, None, None, 1, 0, 0]])]],
        [0, [cbor2.dumps([["c", -1, 0, None, None, None, 0, 0, 0]])]],
        [0, [cbor2.dumps([["c", 0, 0, None, None, None, 0, 0]])]],
        [0, [cbor2.dumps([["c", 0, 0, None, None, None, 0, 0, 0]] * 2)]],
    ],
)
def test_what_is_no_dump_is_refused(dump: Any) -> None:
    with pytest.raises(ValueError, match="consumers"):
        Consumers.load(TOPIC, dump, cbor2.loads)


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"op": "put", "consumer": "c", "at": 1, "seq": 1, "ttl_ms": 0},
        {"op": "committed", "consumer": "c", "at": -1, "seq": 1},
        {"op": "committed", "consumer": 5, "at": 1, "seq": 1},
        {"op": "sought", "consumer": "c", "at": 1, "seq": 2**64},
        {"op": "acquired", "consumer": "c", "at": 1, "owner": None, "generation": 1, "deadline": 1},
        {"op": "gone", "consumer": "c", "at": 1},
    ],
)
def test_a_payload_that_no_version_has_written_is_refused(payload: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="consumer event"):
        event_from_wire(payload, 0)
