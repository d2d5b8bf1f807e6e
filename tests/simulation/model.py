"""What clients were told, and the judgement of what a recovery shows them afterwards (`docs/spec/semantics.md` section
8).

Knows nothing of `topics.log`: a `Client` writes down what it sent, what was answered and what it read; `Oracle` folds
the first n entries of that history into what must, may and must not be there, and compares it with a complete read of
every topic.

Where the order of two things cannot be told from outside (an append beside a change of class, an append beside a
deletion) the oracle allows either. Everything else is exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec

from topics.engine.engine import Engine
from topics.errors import ApiError
from topics.log.tag_match import TagMatch
from topics.model import AppendRequest, AppendResult, Performance, ReadRequest, RecordIn, TopicConfig, TopicConfigPatch

Fate = Literal["kill", "machine", "stop"]
"""How a life has ended, as far as promises are concerned."""


@dataclass(frozen=True, slots=True)
class Record:
    """A record as a reader gets it."""

    seq: int
    ts: int
    data: int
    """Our records are `{"n": <unique>, ...}`; this is n."""
    body: str
    """All of it but seq and time, in a canonical form."""


@dataclass(frozen=True, slots=True)
class View:
    """Everything that a reader can find out about a topic."""

    name: str
    epoch: int
    config: TopicConfig
    head: int
    earliest: int
    count: int
    bytes: int
    records: dict[int, Record]
    gaps: list[tuple[int, int, str]]

    def gap_of(self, seq: int) -> str | None:
        """The reason that a tombstone gives for `seq`; None if there is none."""
        return next((reason for first, last, reason in self.gaps if first <= seq <= last), None)


async def view_of(engine: Engine, name: str, *, limit: int = 50) -> View:
    """Read a topic from its beginning to its head."""
    records: dict[int, Record] = {}
    gaps: list[tuple[int, int, str]] = []
    position = 0
    while True:
        request = ReadRequest(from_seq=position, limit=limit, include_tags=True)
        result = await engine.reads.read(name, request, Performance())
        if result.tombstone is not None:
            gap = result.tombstone
            assert gap.gap_from > position, f"{name}: a tombstone {gap} met at {position}"
            gaps.append((gap.gap_from, gap.gap_to, gap.reason))
        for row in msgspec.json.decode(b"[" + result.records + b"]"):
            seq, ts = row.pop("$seq"), row.pop("$ts")
            assert seq > position, f"{name}: seq {seq} behind {position}"
            position = seq
            records[seq] = Record(seq, ts, row["data"]["n"], canonical(row))
        position = result.next_from_seq
        if result.caught_up:
            break
    state = await engine.topic_states.of(name, touch=False)
    return View(
        name, state.epoch, state.config, state.head_seq, state.earliest_seq, state.count, state.bytes, records, gaps
    )


async def views_of(engine: Engine) -> dict[str, View]:
    """Every topic there is."""
    page, more = await engine.topic_states.page("", None, 1000)
    assert not more
    return {one.topic: await view_of(engine, one.topic) for one in page}


def canonical(row: Mapping[str, Any]) -> str:
    """The members of a record as text that compares equal for any order of them."""
    return msgspec.json.encode(row, order="sorted").decode()


# ----------------------------------------------------------------- what clients write down


@dataclass(slots=True)
class Sent:
    """A request that left the client."""

    id: int
    kind: Literal["create", "configure", "delete_topic", "append", "delete"]
    topic: str
    patch: TopicConfigPatch | None = None
    records: tuple[RecordIn, ...] = ()
    numbers: tuple[int, ...] = ()
    key: str | None = None
    before: int | None = None
    match: TagMatch | None = None


@dataclass(slots=True)
class Acked:
    """Its answer. `first` and `last` of an append; `epoch` and `config` of a create or change."""

    id: int
    first: int = 0
    last: int = 0
    epoch: int = 0
    config: TopicConfig | None = None
    synced: int = 0
    """`synced_seq` as shown right after."""


@dataclass(slots=True)
class Refused:
    """Its error."""

    id: int
    code: str


@dataclass(slots=True)
class Saw:
    """A complete read, made while the daemon was up."""

    view: View


@dataclass(slots=True)
class Restarted:
    """A life has ended, and a new one began with these views."""

    fate: Fate
    views: dict[str, View]


Entry = Sent | Acked | Refused | Saw | Restarted


class History:
    """What all clients of a world have written down, in order."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self.entries)

    def number(self) -> int:
        """A number that no other record has."""
        self._number += 1
        return self._number


def numbered(numbers: Iterable[int], size: int, **fields: Any) -> tuple[RecordIn, ...]:
    """A record of about this size for each number, all else the same."""
    return tuple(RecordIn(data=msgspec.Raw(b'{"n":%d,"x":"%b"}' % (n, b"x" * size)), **fields) for n in numbers)


class Client:
    """Makes requests of an engine and writes down what becomes of them. A refusal is a None."""

    def __init__(self, engine: Engine, history: History) -> None:
        self.engine = engine
        self.history = history

    def _send(self, sent: Sent) -> Sent:
        self.history.entries.append(sent)
        return sent

    def _ack(self, acked: Acked) -> None:
        self.history.entries.append(acked)

    def _refused(self, sent: Sent, error: ApiError) -> None:
        self.history.entries.append(Refused(sent.id, error.code))

    async def create(self, topic: str, **config: Any) -> bool:
        """Create a topic, or configure one that is there already."""
        kind: Literal["create", "configure"] = "configure" if topic in self.engine.registry.topics else "create"
        patch = TopicConfigPatch(**config)
        sent = self._send(Sent(len(self.history), kind, topic, patch=patch))
        try:
            resolved, _ = await self.engine.topic_lifecycle.put(topic, patch)
        except ApiError as error:
            self._refused(sent, error)
            return False
        self._ack(
            Acked(
                sent.id, epoch=self.engine.registry.topics[topic].id, config=resolved, synced=await self._synced(topic)
            )
        )
        return True

    configure = create

    async def delete_topic(self, topic: str) -> bool:
        """Delete a topic."""
        sent = self._send(Sent(len(self.history), "delete_topic", topic))
        try:
            await self.engine.topic_lifecycle.delete(topic, if_empty=False)
        except ApiError as error:
            self._refused(sent, error)
            return False
        self._ack(Acked(sent.id))
        return True

    async def append(  # what a record may have, one argument each
        self,
        topic: str,
        count: int = 1,
        *,
        size: int = 30,
        tag: str | None = None,
        node: str | None = None,
        meta: dict[str, str] | None = None,
        key: str | None = None,
    ) -> AppendResult | None:
        """Append a batch of records that nobody else has appended."""
        numbers = tuple(self.history.number() for _ in range(count))
        records = numbered(numbers, size, tag=tag, node=node, meta=meta)
        sent = self._send(Sent(len(self.history), "append", topic, records=records, numbers=numbers, key=key))
        try:
            result = await self.engine.appends.append(
                topic, AppendRequest(records=list(records), idempotency_key=key, create=False), Performance()
            )
        except ApiError as error:
            self._refused(sent, error)
            return None
        self._ack(Acked(sent.id, first=result.first_seq, last=result.last_seq, synced=await self._synced(topic)))
        return result

    async def delete(self, topic: str, *, before: int | None = None, match: TagMatch | None = None) -> bool:
        """Delete records."""
        sent = self._send(Sent(len(self.history), "delete", topic, before=before, match=match))
        try:
            await self.engine.deletions.delete_records(topic, before, match, Performance())
        except ApiError as error:
            self._refused(sent, error)
            return False
        self._ack(Acked(sent.id, synced=await self._synced(topic)))
        return True

    async def look(self, topic: str) -> View | None:
        """Read all of a topic."""
        try:
            view = await view_of(self.engine, topic)
        except ApiError:
            return None
        self.history.entries.append(Saw(view))
        return view

    async def _synced(self, topic: str) -> int:
        """0 if nobody can tell."""
        if topic not in self.engine.registry.topics:
            return 0
        try:
            return (await self.engine.topic_states.of(topic, touch=False)).synced_seq
        except ApiError:
            return 0


# ----------------------------------------------------------------- what must be there


@dataclass(slots=True)
class _Append:
    sent: Sent
    at: int
    """Index of the request in the history."""
    classes: set[str]
    """Every class that the topic may have had between request and answer."""
    acked_at: int | None = None
    first: int = 0
    hard: bool = False
    """On disk for certain: no crash may undo it."""
    refused: bool = False
    forgotten: bool = False
    """Its records were lost at a restart, and its key with them."""


@dataclass(slots=True)
class _Delete:
    sent: Sent
    at: int
    classes: set[str]
    acked_at: int | None = None
    hard: bool = False
    unsure: bool = False
    """A restart may have undone it; where it has not, what it took is known to be gone."""


@dataclass(slots=True)
class _Instance:
    name: str
    epoch: int = 0
    created: bool = False
    deletion: Literal["none", "asked", "done"] = "none"
    options: list[TopicConfig] = field(default_factory=list)
    """The configurations it may have now: one, or two while a change is on its way or was refused by a failing shard.
    """
    current: TopicConfig | None = None
    """The one that was answered last."""
    ever: list[TopicConfig] = field(default_factory=list)
    appends: list[_Append] = field(default_factory=list)
    deletes: list[_Delete] = field(default_factory=list)
    seen: dict[int, Record] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)
    """Seqs that were announced as `lost` before."""
    gone: set[int] = field(default_factory=set)
    """Seqs that a recovery showed to be gone: they never come back."""
    floor: int = 0
    """Highest seq that a recovery announced as gone below the front."""
    crashed: bool = False

    def operations(self) -> list[_Append | _Delete]:
        """All that was asked of its records."""
        return [*self.appends, *self.deletes]

    @property
    def classes(self) -> set[str]:
        return {config.durability for config in self.options}


_DISK: Final = frozenset({"disk", "fsync"})


class Oracle:
    """The first `known` entries of a history, and what they allow."""

    def __init__(self, history: History, known: int | None = None) -> None:
        self.instances: dict[str, list[_Instance]] = {}
        self._ops: dict[int, tuple[Sent, _Instance, Any]] = {}
        for at, entry in enumerate(history.entries[:known]):
            self._fold(at, entry)

    # -- folding ------------------------------------------------------------------------------------------------------

    def _current(self, name: str) -> _Instance:
        instances = self.instances.setdefault(name, [])
        if not instances or instances[-1].deletion == "done":
            instances.append(_Instance(name))
        return instances[-1]

    def _fold(self, at: int, entry: Entry) -> None:
        if isinstance(entry, Sent):
            self._fold_sent(at, entry)
        elif isinstance(entry, Acked):
            self._fold_acked(at, entry)
        elif isinstance(entry, Refused):
            op = self._ops[entry.id][2]
            if isinstance(op, _Append):
                op.refused = True
        elif isinstance(entry, Saw):
            self._fold_view(entry.view)
        else:
            self._fold_restart(entry)

    def _fold_sent(self, at: int, sent: Sent) -> None:
        instance = self._current(sent.topic)
        op: Any = None
        if sent.kind in ("create", "configure"):
            assert sent.patch is not None
            before = instance.options[-1] if instance.options else TopicConfig()
            changes = {
                name: value
                for name in sent.patch.__struct_fields__
                if (value := getattr(sent.patch, name)) is not msgspec.UNSET
            }
            if "durability" in changes:
                changes["durable"] = changes["durability"] == "fsync"
            wanted = msgspec.structs.replace(before, **changes)
            instance.options.append(wanted)
            instance.ever.append(wanted)
            for other in instance.operations():
                if other.acked_at is None:
                    other.classes.add(wanted.durability)
        elif sent.kind == "delete_topic":
            instance.deletion = "asked"
        elif sent.kind == "append":
            op = _Append(sent, at, instance.classes)
            instance.appends.append(op)
        else:
            op = _Delete(sent, at, instance.classes)
            instance.deletes.append(op)
        self._ops[sent.id] = (sent, instance, op)

    def _fold_acked(self, at: int, acked: Acked) -> None:
        sent, instance, op = self._ops[acked.id]
        if sent.kind in ("create", "configure"):
            assert acked.config is not None
            assert acked.config == instance.options[-1], f"{sent} was answered with {acked.config}"
            if sent.kind == "create":
                instance.created, instance.epoch = True, acked.epoch
            if acked.config == instance.current:
                # Nothing was done. What a change that was refused would have made of it may be found yet.
                instance.options.remove(acked.config)
            else:
                if sent.kind == "configure" and len({config.durability for config in instance.options}) > 1:
                    self._harden(instance, before=sent.id)
                instance.options = [acked.config]
                instance.current = acked.config
        elif sent.kind == "delete_topic":
            instance.deletion = "done"
        else:
            op.acked_at = at
            if op.classes == {"fsync"}:
                op.hard = True
            if isinstance(op, _Append):
                op.first = acked.first
                assert acked.last - acked.first + 1 == len(sent.numbers)
                for other in instance.appends:
                    assert (
                        other is op
                        or not other.first
                        or not (other.first <= acked.last and acked.first < other.first + len(other.sent.numbers))
                    ), f"{instance.name}: seqs {acked.first} to {acked.last} were given out twice"
        if acked.synced:
            for append in instance.appends:
                if append.acked_at is not None and append.first + len(append.sent.numbers) - 1 <= acked.synced:
                    append.hard = True

    @staticmethod
    def _harden(instance: _Instance, *, before: int | None = None) -> None:
        """All that was answered (before the request at index `before` was made) is on disk for certain now."""
        for op in instance.operations():
            if op.acked_at is not None and (before is None or op.acked_at < before):
                op.hard = True

    def _fold_view(self, view: View) -> None:
        instance = self._current(view.name)
        for seq, record in view.records.items():
            known = instance.seen.setdefault(seq, record)
            assert known == record, f"{view.name}: seq {seq} was {known} and is {record}"
        for first, last, reason in view.gaps:
            if reason == "lost":
                instance.lost.update(range(first, last + 1))

    def _fold_restart(self, entry: Restarted) -> None:
        """What a recovery shows is on disk; what it does not show never comes back."""
        for name, instances in self.instances.items():
            instance = instances[-1]
            view = entry.views.get(name)
            instance.crashed = instance.crashed or entry.fate != "stop"
            if view is None:
                instance.deletion = "done"
                continue
            if instance.epoch and view.epoch != instance.epoch:
                continue
            if instance.deletion == "asked":
                instance.deletion = "none"
            instance.created, instance.epoch = True, view.epoch
            volatile = "ephemeral" in instance.classes
            instance.options = [view.config]
            instance.current = view.config
            self._fold_view(view)
            by_number = {record.data: seq for seq, record in view.records.items()}
            for append in instance.appends:
                present = [by_number[n] - i for i, n in enumerate(append.sent.numbers) if n in by_number]
                if present:
                    append.first = present[0]
                    append.acked_at = append.acked_at or append.at
                    append.hard = True
                else:
                    lost = append.first in instance.lost or entry.fate != "stop"
                    append.forgotten = append.forgotten or volatile or (lost and not append.hard)
            for delete in instance.deletes:
                delete.unsure = delete.unsure or not delete.hard
            instance.gone.update(seq for seq in range(1, view.head + 1) if seq not in view.records)
            for first, last, reason in view.gaps:
                if reason == "lost" or first == 1:
                    instance.lost.update(range(first, last + 1))

    # -- judging ------------------------------------------------------------------------------------------------------

    def judge(self, views: Mapping[str, View], fate: Fate, *, now_ms: int, failed: bool = False) -> None:
        """Raise AssertionError if what a recovery shows breaks a promise. `failed`: a shard had failed in the life that
        ended.
        """
        for name in views:
            assert name in self.instances, f"{name} was never created"
        for name, instances in self.instances.items():
            view = views.get(name)
            instance = instances[-1]
            if view is None:
                assert not (instance.created and instance.deletion == "none"), f"{name} was created and is not there"
                continue
            assert not (instance.deletion == "done" and instance.created), f"{name} was deleted and is there again"
            if instance.created:
                assert view.epoch == instance.epoch, f"{name} is another instance"
            else:
                assert all(view.epoch != old.epoch for old in instances[:-1]), f"{name} is the deleted instance"
            _Case(instance, view, fate, now_ms, failed).check()

    def judge_live(self, views: Mapping[str, View], *, now_ms: int) -> None:
        """The same for what a daemon shows that has not stopped, of topics that were never `ephemeral`."""
        for name, view in views.items():
            instance = self.instances[name][-1]
            if all(config.durability != "ephemeral" for config in instance.ever):
                _Case(instance, view, "stop", now_ms, failed=False).check()


class _Case:
    """One topic after one recovery."""

    def __init__(self, instance: _Instance, view: View, fate: Fate, now_ms: int, failed: bool) -> None:
        self.instance = instance
        self.view = view
        self.fate = fate
        self.now_ms = now_ms
        self.failed = failed
        self.of_number = {n: (op, i) for op in instance.appends for i, n in enumerate(op.sent.numbers)}
        self.known = {op.first + i: (op, i) for op in instance.appends if op.first for i in range(len(op.sent.numbers))}

    def check(self) -> None:
        """All of it, the plainest things first."""
        view, instance = self.view, self.instance
        assert view.config in instance.options, self.says(f"its config {view.config} was never asked for")
        self.check_figures()
        self.check_content()
        self.check_numbering()
        self.check_promises()
        self.check_batches()
        self.check_gaps()
        self.check_retention()

    def says(self, problem: str) -> str:
        """A problem with what is needed to understand it."""
        view = self.view
        shown = {seq: record.data for seq, record in view.records.items()}
        return (
            f"{view.name} after {self.fate} ({'/'.join(sorted(self.instance.classes))}): {problem}\n"
            f"  head {view.head} earliest {view.earliest} count {view.count} gaps {view.gaps}\n  records {shown}"
        )

    def check_figures(self) -> None:
        """`count`, `bytes` and `earliest_seq` are what a full read shows."""
        view = self.view
        sizes = 0
        for record in view.records.values():
            op, i = self.of_number.get(record.data, (None, 0))
            assert op is not None, self.says(f"seq {record.seq} holds {record.body}, which nobody has appended")
            given = op.sent.records[i]
            sizes += len(given.data) + (len(msgspec.json.encode(given.meta)) if given.meta else 0)
        assert view.count == len(view.records), self.says("count is not what a read shows")
        assert view.bytes == sizes, self.says(f"bytes is {view.bytes}, a read shows {sizes}")
        assert view.earliest == min(view.records, default=view.head + 1), self.says("earliest_seq is not the first")

    def check_content(self) -> None:
        """Nothing is made up, changed, or moved to another seq."""
        last_ts = 0
        for seq, record in self.view.records.items():
            op, i = self.of_number[record.data]
            given = op.sent.records[i]
            row: dict[str, Any] = {"data": msgspec.json.decode(given.data)}
            if given.tag:
                row["$tag"] = given.tag
            if given.node:
                row["$node"] = given.node
            if given.meta:
                row["meta"] = given.meta
            assert record.body == canonical(row), self.says(f"seq {seq} is {record.body}, it was {canonical(row)}")
            assert not op.first or op.first + i == seq, self.says(f"{record.data} was acked as {op.first + i}")
            expected = self.instance.seen.get(seq)
            assert expected in (None, record), self.says(f"seq {seq} is {record}, a reader saw {expected}")
            assert record.ts >= last_ts, self.says(f"time goes back at seq {seq}")
            last_ts = record.ts

    def check_numbering(self) -> None:
        """No seq that anybody has seen will be given out again."""
        used = max([0, *self.known, *self.instance.seen])
        assert self.view.head >= used, self.says(f"seq {used} was seen and will be given out again")

    def required(self, op: _Append) -> bool:
        """Whether this append must have survived."""
        if op.acked_at is None or "ephemeral" in self.instance.classes:
            return False
        if op.hard:
            return True
        if "ephemeral" in op.classes:
            return False
        if self.fate == "stop":
            return True
        return self.fate == "kill" and op.classes <= _DISK and self.instance.classes <= _DISK and not self.failed

    def certain(self, op: _Delete) -> bool:
        """Whether this deletion must have survived."""
        if op.acked_at is None or op.unsure:
            return False
        if op.hard:
            return True
        if "ephemeral" in op.classes or "ephemeral" in self.instance.classes:
            return False
        return self.fate == "stop" or (self.fate == "kill" and op.classes <= _DISK and not self.failed)

    @staticmethod
    def selects(delete: _Delete, seq: int, tag: str | None) -> bool:
        """Whether a deletion was about this record."""
        sent = delete.sent
        return (sent.before is None or seq < sent.before) and (sent.match is None or sent.match.matches(tag))

    def maybe_deleted(self, seq: int) -> bool:
        """Whether somebody may have deleted `seq`."""
        known = self.known.get(seq)
        for delete in self.instance.deletes:
            if known is None:
                if delete.sent.before is None or seq < delete.sent.before:
                    return True
                continue
            op, i = known
            if (delete.acked_at is None or op.at < delete.acked_at) and self.selects(
                delete, seq, op.sent.records[i].tag
            ):
                return True
        return False

    def evictable(self) -> bool:
        """Whether caps or ttl may have taken anything."""
        return any(config.cap_records or config.cap_bytes or config.ttl_ms for config in self.instance.ever)

    def check_promises(self) -> None:
        """What was promised is there; what was deleted for certain is not."""
        view = self.view
        if self.instance.classes == {"ephemeral"}:
            assert not view.records, self.says("records of an ephemeral topic are there again")
        for seq, (op, i) in self.known.items():
            if seq in view.records:
                tag = op.sent.records[i].tag
                for delete in self.instance.deletes:
                    sure = op.acked_at is not None and op.acked_at < delete.sent.id
                    if sure and self.certain(delete):
                        assert not self.selects(delete, seq, tag), self.says(f"seq {seq} was deleted and is back")
                assert seq not in self.instance.gone, self.says(f"seq {seq} was gone after a recovery and is back")
            elif self.required(op) and not self.maybe_deleted(seq):
                reason = view.gap_of(seq)
                assert reason is not None, self.says(f"seq {seq} is gone, and nobody is told")
                if seq not in self.instance.lost:
                    legal = reason in ("cap", "ttl", "mixed") and self.evictable()
                    assert legal, self.says(f"seq {seq} was promised and is {reason}")

    def check_batches(self) -> None:
        """A batch is all there or not at all, deletions and evictions apart."""
        view = self.view
        first_of = {record.data: record.seq for record in view.records.values()}
        for op in self.instance.appends:
            places = [(first_of[n], i) for i, n in enumerate(op.sent.numbers) if n in first_of]
            if not places:
                continue
            base = places[0][0] - places[0][1]
            for i in range(len(op.sent.numbers)):
                seq = base + i
                if seq in view.records:
                    assert view.records[seq].data == op.sent.numbers[i], self.says(f"the batch at {base} is mixed up")
                    continue
                gone = view.gap_of(seq) in ("cap", "ttl", "mixed") or self.maybe_deleted(seq) or self._deletable(op, i)
                assert gone, self.says(f"of the batch at {base} seq {seq} is missing")

    def _deletable(self, op: _Append, i: int) -> bool:
        return any(
            self.selects(delete, op.first + i if op.first else 0, op.sent.records[i].tag)
            for delete in self.instance.deletes
        )

    def check_gaps(self) -> None:
        """Every loss is announced, and nothing else is."""
        view, instance = self.view, self.instance
        for seq in range(1, view.head + 1):
            if seq in view.records:
                continue
            reason = view.gap_of(seq)
            if reason is None:
                assert self.maybe_deleted(seq), self.says(f"seq {seq} is gone silently, and nobody has deleted it")
            elif reason == "lost":
                self._check_lost(seq)
            else:
                assert reason in ("cap", "ttl", "mixed"), self.says(f"seq {seq} is {reason}")
                excused = self.evictable() or seq in instance.lost
                assert excused, self.says(f"seq {seq} is {reason} on a topic without retention")
        for first, last, reason in view.gaps:
            new = [seq for seq in range(first, last + 1) if seq not in instance.lost]
            if reason == "lost" and new and first != 1:
                assert last == view.head, self.says(f"the new hole {first} to {last} is not at the end")

    def _check_lost(self, seq: int) -> None:
        instance = self.instance
        if seq in instance.lost or "ephemeral" in instance.classes:
            return
        if (
            seq < self.view.earliest
            and self.maybe_deleted(seq)
            and not instance.lost.isdisjoint(range(1, self.view.earliest))
        ):
            return  # the gap before the front ends where the first live record is, deletions included
        assert self.fate != "stop", self.says(f"seq {seq} is lost after a clean stop")
        assert instance.classes != {"fsync"}, self.says(f"seq {seq} of an fsync topic is lost")
        stayed = self.fate == "kill" and instance.classes <= _DISK and not self.failed
        assert not stayed, self.says(f"seq {seq} of a disk topic is lost, and the machine stayed up")

    def check_retention(self) -> None:
        """Caps hold, and take no more than they must; ttl takes only what is too old."""
        view, instance = self.view, self.instance
        if len(instance.options) != 1:
            return
        config = instance.options[0]
        if config.cap_records and config.discard == "old":
            assert view.count <= config.cap_records, self.says(f"more than the cap of {config.cap_records}")
        if config.cap_bytes and config.discard == "old":
            assert view.bytes <= config.cap_bytes, self.says(f"more than the cap of {config.cap_bytes} bytes")
        same = all(other.cap_records == config.cap_records for other in instance.ever)
        plain = not any(other.ttl_ms or other.cap_bytes for other in instance.ever) and not instance.deletes
        holes = any(reason in ("lost", "mixed") for _, _, reason in view.gaps)
        if same and plain and not holes and instance.classes != {"ephemeral"}:
            expected = min(view.head, config.cap_records) if config.cap_records else view.head
            assert view.count == expected, self.says(f"{expected} records should be there")
        if config.ttl_ms:
            for record in view.records.values():
                assert self.now_ms - record.ts <= config.ttl_ms, self.says(f"seq {record.seq} has expired")
        largest = max((other.ttl_ms for other in instance.ever), default=0)
        only_ttl = largest and not any(other.cap_records or other.cap_bytes for other in instance.ever)
        if only_ttl and all(other.ttl_ms == largest for other in instance.ever):
            for seq, record in instance.seen.items():
                young = self.now_ms - record.ts <= largest
                if young and seq not in view.records and view.gap_of(seq) == "ttl":
                    assert self.maybe_deleted(seq), self.says(f"seq {seq} has not expired")


def keyed(instance: Iterable[_Append]) -> list[_Append]:
    """The appends that carried an idempotency key."""
    return [op for op in instance if op.sent.key is not None]


async def append_everywhere(engine: Engine, oracle: Oracle, views: Mapping[str, View], fate: Fate) -> None:
    """Repeat every keyed append, then append in every topic: the same seqs for the one, the next seqs for the other."""
    for name, view in views.items():
        instance = oracle.instances[name][-1]
        case = _Case(instance, view, fate, 0, failed=False)
        shown = {record.data for record in view.records.values()}
        head = view.head
        for op in keyed(instance.appends):
            request = AppendRequest(records=list(op.sent.records), idempotency_key=op.sent.key, create=False)
            result = await engine.appends.append(name, request, Performance())
            if result.deduped:
                assert not op.first or result.first_seq == op.first, case.says(f"{op.sent.key} has other seqs now")
                assert result.count == len(op.sent.numbers)
                continue
            kept = case.required(op) and not op.forgotten
            assert not kept, case.says(f"the key {op.sent.key} of an append that is there is forgotten")
            assert not shown & set(op.sent.numbers), case.says(f"the append of {op.sent.key} is there twice now")
            assert result.first_seq == head + 1, case.says(f"after {head} comes {result.first_seq}")
            head = result.last_seq
        for _ in range(2):
            records = [RecordIn(data=msgspec.Raw(b'{"n":0}'))]
            result = await engine.appends.append(name, AppendRequest(records=records, create=False), Performance())
            assert result.first_seq == head + 1, case.says(f"after {head} comes {result.first_seq}")
            head = result.last_seq
        after = await view_of(engine, name)
        assert after.head == head
