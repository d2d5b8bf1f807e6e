"""A naive model of one topic, for the tests of segments: what its records are, byte for byte, and what a reader is
told.

One list of slots, no index, no segments, no cache. It is told what was done and says what every read must show; reads
are compared with it in full. Where the outside cannot know better (what a restart makes of an `ephemeral` topic, how
many deletions a tombstone's estimate remembers) it takes over what is within the rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from topics.engine.engine import Engine
from topics.log.tag_match import TagMatch
from topics.model import Performance, ReadRequest, ReadResult, TopicConfig

LIVE: Final = "live"
DELETED: Final = "deleted"


class Row(msgspec.Struct):
    """A record of an answer, its values as they stand there."""

    seq: int = msgspec.field(name="$seq")
    ts: int = msgspec.field(name="$ts")
    data: msgspec.Raw
    node: str | None = msgspec.field(name="$node", default=None)
    tag: str | None = msgspec.field(name="$tag", default=None)
    meta: msgspec.Raw = msgspec.Raw(b"")


_rows = msgspec.json.Decoder(list[Row])


@dataclass(slots=True)
class Slot:
    """One seq: what was appended, and what has become of it (`live`, `deleted`, or the reason of its loss)."""

    ts: int
    data: bytes
    tag: str | None
    node: str | None
    meta: bytes
    state: str = LIVE

    @property
    def size(self) -> int:
        """What counts towards `bytes`."""
        return len(self.data) + len(self.meta)


@dataclass(slots=True)
class TopicModel:
    """See the module."""

    name: str
    epoch: int
    config: TopicConfig
    slots: list[Slot] = field(default_factory=list)
    keys: dict[str, tuple[int, int]] = field(default_factory=dict)
    blurred: bool = False
    """It was `ephemeral`: the reasons of what it has lost depend on when somebody has looked."""

    @property
    def head(self) -> int:
        return len(self.slots)

    @property
    def live(self) -> list[int]:
        """The live seqs."""
        return [seq for seq, slot in enumerate(self.slots, 1) if slot.state == LIVE]

    @property
    def count(self) -> int:
        return len(self.live)

    @property
    def bytes(self) -> int:
        return sum(slot.size for slot in self.slots if slot.state == LIVE)

    @property
    def earliest(self) -> int:
        return next((seq for seq, slot in enumerate(self.slots, 1) if slot.state == LIVE), self.head + 1)

    @property
    def evict_floor(self) -> int:
        return next((seq + 1 for seq in range(self.earliest - 1, 0, -1) if self.is_lost(seq)), 1)

    def slot(self, seq: int) -> Slot:
        return self.slots[seq - 1]

    def is_lost(self, seq: int) -> bool:
        return self.slot(seq).state not in (LIVE, DELETED)

    # -- what is done to it --------------------------------------------------------------------------------------

    def expire(self, now_ms: int) -> None:
        if not self.config.ttl_ms:
            return
        for slot in self.slots:
            if slot.state == LIVE and now_ms - slot.ts > self.config.ttl_ms:
                slot.state = "ttl"

    def fits(self, sizes: Sequence[int]) -> str | None:
        """With `reject`: the error of an append, None if it fits."""
        config = self.config
        if config.discard != "reject":
            return None
        over = (config.cap_records and len(sizes) > config.cap_records) or (
            config.cap_bytes and sum(sizes) > config.cap_bytes
        )
        if over:
            return "record_too_large"
        full = (config.cap_records and self.count + len(sizes) > config.cap_records) or (
            config.cap_bytes and self.bytes + sum(sizes) > config.cap_bytes
        )
        return "topic_full" if full else None

    def append(self, slots: Iterable[Slot]) -> None:
        self.slots.extend(slots)
        if self.config.discard == "old":
            self.evict()

    def evict(self) -> None:
        """The oldest go until the caps hold."""
        cap_records, cap_bytes = self.config.cap_records, self.config.cap_bytes
        live = self.live
        count, total = len(live), self.bytes
        for seq in live:
            if not ((cap_records and count > cap_records) or (cap_bytes and total > cap_bytes)):
                break
            self.slot(seq).state = "cap"
            count, total = count - 1, total - self.slot(seq).size

    def selected(self, before: int | None, match: TagMatch | None) -> list[int]:
        return [
            seq
            for seq in self.live
            if (before is None or seq < before) and (match is None or match.matches(self.slot(seq).tag))
        ]

    def delete(self, seqs: Iterable[int]) -> None:
        for seq in seqs:
            self.slot(seq).state = DELETED

    def configure(self, config: TopicConfig) -> None:
        if "ephemeral" in (config.durability, self.config.durability):
            self.blurred = True
        self.config = config
        self.evict()  # a tighter cap applies at once, with either `discard`

    def restart(self, head: int) -> None:
        """The daemon has ended and started; `head` is what it is now."""
        if self.config.durability == "ephemeral":
            self.blurred = True
            self.keys.clear()
            for slot in self.slots:
                if slot.state == LIVE:
                    slot.state = "lost"
        assert head >= self.head, f"{self.name}: the head went back from {self.head} to {head}"
        volatile = self.config.durability in ("ephemeral", "memory")
        assert head == self.head or volatile, f"{self.name}: seqs were lost by a kill of the process"
        last = self.slots[-1].ts if self.slots else 0
        self.slots += [Slot(last, b"", None, None, b"", "lost") for _ in range(head - self.head)]

    # -- what a reader sees --------------------------------------------------------------------------------------

    def holes(self) -> list[tuple[int, int, str]]:
        """Runs of lost seqs above the front, by reason."""
        runs: list[tuple[int, int, str]] = []
        for seq in range(self.earliest, self.head + 1):
            reason = self.slot(seq).state
            if reason in (LIVE, DELETED):
                continue
            if runs and runs[-1][1] == seq - 1 and runs[-1][2] == reason:
                runs[-1] = (runs[-1][0], seq, reason)
            else:
                runs.append((seq, seq, reason))
        return runs

    def gap_reason(self, position: int) -> str:
        """Of the gap before the front, for a reader at `position`."""
        reasons = {slot.state for slot in self.slots[position : self.earliest - 1]} - {LIVE, DELETED}
        return reasons.pop() if len(reasons) == 1 else "mixed"

    def check_read(self, request: ReadRequest, result: ReadResult) -> None:
        """Raise AssertionError unless `result` is the answer to `request`."""
        says = f"{self.name} (epoch {self.epoch}) from {request.from_seq} limit {request.limit}"
        rows = _rows.decode(b"[" + result.records + b"]")
        assert (result.epoch, result.head_seq, result.earliest_seq) == (self.epoch, self.head, self.earliest), says
        position = request.from_seq
        gap: Any = None
        if position > self.head:
            assert result.tombstone is not None, says
            found: Any = (result.tombstone.gap_from, result.tombstone.gap_to, result.tombstone.reason)
            assert found == (1, self.head, "recreated"), says
            gap, position = found, self.earliest - 1
        elif position + 1 < self.evict_floor:
            gap = (position + 1, self.earliest - 1, self.gap_reason(position))
            missed = sum(self.is_lost(seq) for seq in range(position + 1, self.earliest))
            assert result.tombstone is not None, f"{says}: the gap {gap} is not announced"
            assert missed <= result.tombstone.missed_estimate <= gap[1] - gap[0] + 1, says
            position = self.earliest - 1
        position = max(position, self.earliest - 1)
        expected: list[int] = []
        stop: int | None = None
        holes = {first: (first, last, reason) for first, last, reason in self.holes()}
        at = position + 1
        inside = next((hole for hole in holes.values() if hole[0] < at <= hole[1]), None)
        if inside is not None:
            holes[at] = (at, inside[1], inside[2])
        while at <= self.head and len(expected) < request.limit:
            slot = self.slot(at)
            if at in holes:
                if expected or gap is not None:
                    stop = at
                    break
                gap = holes[at]
                at = gap[1] + 1
                continue
            visible = not (self.config.dedupe_node and slot.node in request.nodes)
            if slot.state == LIVE and visible:
                expected.append(at)
            at += 1
        shown = None if result.tombstone is None else result.tombstone
        found_gap = None if shown is None else (shown.gap_from, shown.gap_to, shown.reason)
        if self.blurred and gap is not None and found_gap is not None and gap[2] != "recreated":
            assert found_gap[:2] == gap[:2], f"{says}: {found_gap} instead of {gap}"
            assert found_gap[2] in ("lost", "cap", "ttl", "mixed"), says
        else:
            assert found_gap == gap, f"{says}: tombstone {found_gap} instead of {gap}"
        assert [row.seq for row in rows] == expected, f"{says}: seqs {[row.seq for row in rows]} instead of {expected}"
        for row in rows:
            slot = self.slot(row.seq)
            tag = slot.tag if request.include_tags else None
            assert (bytes(row.data), row.ts, row.node, row.tag) == (slot.data, slot.ts, slot.node, tag), says
            assert bytes(row.meta) == (slot.meta if request.include_meta else b""), says
        last = expected[-1] if expected else position
        if len(expected) >= request.limit:
            assert result.next_from_seq == last, says
        else:
            low, high = (last, (stop or self.head + 1) - 1)
            assert low <= result.next_from_seq <= high, f"{says}: next {result.next_from_seq}, not {low} to {high}"
            assert stop is not None or result.next_from_seq == self.head, f"{says}: stopped at {result.next_from_seq}"
        assert result.caught_up == (result.next_from_seq == self.head), says
        assert result.lag == self.head - result.next_from_seq, says


async def compare(engine: Engine, model: TopicModel, *, limit: int = 1000) -> None:
    """State and a full read of a topic against its model, as of now."""
    state = await engine.topic_states.of(model.name, touch=False)
    model.expire(engine.registry.now_ms())
    shown = (state.epoch, state.config, state.head_seq, state.earliest_seq, state.count, state.bytes)
    told = (model.epoch, model.config, model.head, model.earliest, model.count, model.bytes)
    assert shown == told, f"{model.name}: {shown} instead of {told}"
    position = 0
    while True:
        request = ReadRequest(from_seq=position, limit=limit, include_tags=True, max_batch_bytes=8 << 20)
        result = await engine.reads.read(model.name, request, Performance())
        model.check_read(request, result)
        assert result.caught_up or result.next_from_seq > position
        position = result.next_from_seq
        if result.caught_up:
            return


def slots_of(ts: int, parts: Iterable[dict[str, Any]]) -> list[Slot]:
    """What an append of these records leaves."""
    return [
        Slot(
            ts,
            part["data"],
            part.get("tag"),
            part.get("node"),
            msgspec.json.encode(part["meta"]) if part.get("meta") else b"",
        )
        for part in parts
    ]
