"""What a recovery shows, held against what is known (`truth.py`): topic by topic, and over routers and salvage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, NoReturn

import msgspec

from tests.simulation.model import View
from tests.simulator.known import (
    RETENTION,
    Fate,
    Instance,
    Promise,
    broken,
    survives,
)
from tests.simulator.transactions import sums_of
from topics.log.tag_match import parse_match
from topics.model import RouterState, TopicConfig

if TYPE_CHECKING:
    from tests.simulator.truth import Truth


class TopicCase:
    """One topic after one recovery."""

    def __init__(self, truth: Truth, instance: Instance, view: View, views: Mapping[str, View], fate: Fate) -> None:
        self.truth = truth
        self.instance = instance
        self.view = view
        self.views = views
        self.fate: Fate = "machine" if truth.failed else fate

    def _maybe_made_by_a_stage(self) -> bool:
        """Whether an append to a stage may have made the topic again, with the config that is everybody's, after it was
        deleted and before anybody else did."""
        name = self.instance.name
        known = self.instance.created and self.instance.deletion == "no"
        deleted = self.instance.deletion != "no" or len(self.truth.instances[name]) > 1
        return not known and deleted and any(stage.instance.name == name for stage in self.truth.stages)

    def check(self) -> None:
        """All of it, the plainest things first."""
        if self._maybe_made_by_a_stage():
            self.instance.options.append(TopicConfig())
            self.instance.configs.append(TopicConfig())
        if self.view.config not in self.instance.options:
            self.fail(f"its config {self.view.config} was never asked for")
        self.check_figures()
        self.check_order()
        self.check_promises()
        self.check_absences()
        self.check_tombstones()
        self.check_batches()
        self.check_commits()
        self.check_retention()
        self.check_tables()

    def fail(self, problem: str) -> NoReturn:
        """With what is needed to understand it."""
        view = self.view
        there = {seq: record.data for seq, record in view.records.items()}
        broken(
            f"{view.name} after {self.fate} ({'/'.join(sorted(self.instance.ever))}): {problem}\n"
            f"  head {view.head} earliest {view.earliest} count {view.count} gaps {view.gaps}\n  records {there}"
        )

    def survives(self, promise: Promise) -> bool:
        """Whether something that was promised so much survives this end."""
        if "ephemeral" in self.instance.classes:
            return False
        return survives(promise, self.fate)

    def check_figures(self) -> None:
        """`count`, `bytes`, `earliest_seq` and `head_seq` are what a full read shows."""
        view = self.view
        size = 0
        for record in view.records.values():
            if record.data not in self.truth.batch_of:
                self.fail(f"nobody has appended {record.body}")
            batch, i = self.truth.batch_of[record.data]
            meta = msgspec.json.decode(record.body).get("meta")
            size += len(batch.records[i].data) + (len(msgspec.json.encode(meta)) if meta else 0)
        if view.count != len(view.records):
            self.fail("count is not what a read shows")
        if view.bytes != size:
            self.fail(f"bytes is {view.bytes}, a read shows {size}")
        if view.earliest != min(view.records, default=view.head + 1):
            self.fail("earliest_seq is not the first record")
        if view.head < self.instance.head:
            self.fail(f"seqs up to {self.instance.head} were seen, they would be given out again")
        if view.records and "ephemeral" in self.instance.classes and len(self.instance.classes) == 1:
            self.fail("records of an ephemeral topic are there after a restart")

    def check_order(self) -> None:
        """Content, times, and how often each record is there."""
        last = 0
        for seq, record in self.view.records.items():
            if record.ts < last:
                self.fail(f"time goes back at seq {seq}")
            last = record.ts
            known = self.instance.at.get(seq)
            if known not in (None, record.data):
                self.fail(f"seq {seq} was record {known}")
            time = self.instance.times.get(seq)
            if time not in (None, record.ts):
                self.fail(f"the time of seq {seq} was {time} and is {record.ts}")
            self.truth.check_body(self.instance, record)
        self.check_repeats()

    def check_repeats(self) -> None:
        """A record that was appended here is here once; a copy is, where nothing brings it twice."""
        counts = Counter(record.data for record in self.view.records.values())
        into = self.truth.routers_into(self.view.name)
        # One that is made again begins again, and remembers nothing of the first one.
        once = bool(into) and all(
            self.truth.plans[name]["guarantee"] == "exactly_once" and self.truth.routers[name].puts == 1
            for name in into
        )
        once = once or (len(into) == 1 and self.truth.routers[into[0]].puts == 1 and self._has_one_source(into[0]))
        for number, count in counts.items():
            if count == 1 or self._is_burial(number) or self.truth.batch_of[number][0].again:
                continue
            if self.truth.batch_of[number][0].instance is self.instance:
                self.fail(f"record {number} is there {count} times")
            if once:
                self.fail(f"record {number} was copied {count} times by {into}")

    def _has_one_source(self, router: str) -> bool:
        source = self.truth.plans[router]["source"]
        return len(self.truth.instances.get(source, ())) == 1 and not self.truth.routers_into(source)

    def _is_burial(self, number: int) -> bool:
        """Whether a record comes from a queue whose dead letters go here: a crash may leave it twice."""
        instance = self.truth.batch_of[number][0].instance
        return instance.buries or instance.is_copied

    @cached_property
    def buried(self) -> Counter[int]:
        """The numbers that are in this topic's dead-letter topics."""
        targets = {config.dead_letter for config in self.instance.configs if config.dead_letter}
        found: Counter[int] = Counter()
        for target in targets:
            if target in self.views:
                found.update(record.data for record in self.views[target].records.values())
        return found

    def _grave_leaks(self) -> bool:
        """Whether a dead letter may be missing where it went."""
        if self.truth.rot:
            return True
        for config in self.instance.configs:
            for grave in self.truth.instances.get(config.dead_letter or "", ()):
                if grave.retained or grave.deletions or grave.gone or grave.deletion != "no" or grave.lost:
                    return True
        return False

    def excused(self, seq: int) -> bool:
        """Whether a record may be away without a word."""
        instance = self.instance
        if instance.may_be_deleted(seq, superseded=False) or self._is_superseded(seq):
            return True
        if not instance.buries:
            return False
        number = instance.at.get(seq)
        return number is None or number in self.buried or self._grave_leaks()

    def _is_superseded(self, seq: int) -> bool:
        """Whether newer records of its tag may have taken a record away: one that is there, or that has gone for a
        reason of its own, or of which nobody was told."""
        instance = self.instance
        tag = instance.tags.get(seq, "")
        if not instance.keeps or tag is None:
            return False
        if not tag or self.truth.rot or "ephemeral" in instance.ever:
            return True
        if any(later > seq and self._tag_of(later) == tag for later in self.view.records):
            return True
        known = (later for later, its in instance.tags.items() if later > seq and its == tag)
        if any(self._has_gone_for_a_reason(later) for later in known):
            return True
        unknown = any(
            not batch.first and any(record.tag == tag for record in batch.records) for batch in instance.batches
        )
        unknown = unknown or bool(self.truth.routers_into(self.view.name))
        return unknown and (instance.deleted_more or instance.retained or bool(instance.consumed_to))

    def _has_gone_for_a_reason(self, seq: int) -> bool:
        reason = self.view.gap_of(seq)
        return self.instance.may_be_deleted(seq, superseded=False) or (reason in RETENTION and self.instance.retained)

    def _tag_of(self, seq: int) -> str | None:
        tag: str | None = msgspec.json.decode(self.view.records[seq].body).get("$tag")
        return tag

    def check_tables(self) -> None:
        """No tag has more records than are kept."""
        keeps = {config.keep_per_tag for config in self.instance.configs}
        if len(keeps) != 1 or keeps == {0} or self.truth.rot:
            return
        counts = Counter(self._tag_of(seq) for seq in self.view.records)
        del counts[None]
        if any(count > max(keeps) for count in counts.values()):
            self.fail(f"of some tags there are more records than {max(keeps)}: {counts}")
        self.truth.checked["tables"] += bool(counts)

    def check_promises(self) -> None:
        """What was promised is there, what was removed for certain is not."""
        for seq, promise in self.instance.gone.items():
            if seq in self.view.records and self.survives(promise):
                self.fail(f"seq {seq} was gone and is back")
        for seq, promise in self.instance.promised.items():
            if seq in self.view.records or not self.survives(promise) or self.excused(seq):
                continue
            reason = self.view.gap_of(seq)
            legal = reason in RETENTION and (self.instance.retained or not self.instance.lost.isdisjoint([seq]))
            if not legal and not self.is_rotten(reason):
                self.fail(f"seq {seq} was promised and is {reason or 'gone silently'}")

    def is_rotten(self, reason: str | None) -> bool:
        """Whether damage that was done explains this."""
        return self.truth.rot > 0 and reason in ("corrupt", "mixed")

    def check_absences(self) -> None:
        """Nothing is away silently that nobody has asked to go, but for transactions that are undone; nothing is there
        and announced to be away."""
        empty: set[int] = set()
        for seq in range(1, self.view.head + 1):
            reason = self.view.gap_of(seq)
            if seq in self.view.records:
                if reason is not None:
                    self.fail(f"seq {seq} is there and {reason}")
            elif reason is None and not self.excused(seq):
                if seq in self.instance.at:
                    self.fail(f"seq {seq} is gone silently, and nobody has asked for that")
                empty.add(seq)
        found = {record.data for record in self.view.records.values()}
        undone = [batch for batch in self.instance.undecided() if found.isdisjoint(batch.numbers)]
        if len(empty) not in sums_of(len(batch.numbers) for batch in undone):
            self.fail(f"seqs {empty} are empty, and nobody has asked for that: {[one.numbers for one in undone]}")
        self.instance.undone |= empty

    def check_tombstones(self) -> None:
        """No tombstone without a loss that is possible, of the kind that it says."""
        instance = self.instance
        for first, last, reason in self.view.gaps:
            where = f"the gap {first} to {last}"
            if reason in ("cap", "ttl"):
                legal = instance.retained
            elif reason == "source_trim":
                legal = bool(self.truth.routers_into(self.view.name))
            elif reason == "corrupt":
                legal = self.truth.rot > 0
            elif reason in ("lost", "mixed"):
                legal = any(self.may_be_lost(seq) for seq in range(first, last + 1))
                legal = legal or (reason == "mixed" and (instance.retained or self.truth.rot > 0))
                legal = legal or (reason == "mixed" and bool(self.truth.routers_into(self.view.name)))
            else:
                legal = False
            if not legal:
                self.fail(f"{where} is {reason}, and cannot be")

    def may_be_lost(self, seq: int) -> bool:
        """Whether an end like this, or one before, can have taken this seq."""
        instance = self.instance
        if seq in instance.lost or "ephemeral" in instance.classes:
            return True
        if seq in instance.gone or self.fate == "stop":
            return False
        if self.survives(instance.promised.get(seq, Promise.NONE)):
            return False
        if self.fate == "kill":
            return not instance.classes <= {"disk", "fsync"}
        return instance.classes != {"fsync"}

    def check_batches(self) -> None:
        """A batch is there whole or not at all, but for what was taken out of it."""
        found = {record.data: seq for seq, record in self.view.records.items()}
        for batch in self.instance.batches:
            if batch.staged:
                continue
            base = next((found[n] - i for i, n in enumerate(batch.numbers) if n in found), None)
            if base is None:
                continue
            for i, number in enumerate(batch.numbers):
                seq = base + i
                if found.get(number) == seq:
                    continue
                if number in found:
                    self.fail(f"the batch at {base} is out of order")
                reason = self.view.gap_of(seq)
                taken = (reason in RETENTION and self.instance.retained) or self.is_rotten(reason)
                if not taken and not self.excused(seq):
                    self.fail(f"of the batch at {base} record {number} is missing")

    def check_commits(self) -> None:
        """A commit is there whole or not at all; one that was answered is there."""
        found = {record.data for record in self.view.records.values()}
        for commit in self.truth.commits:
            if commit.instance is not self.instance or "ephemeral" in self.instance.ever:
                continue
            if commit.answer is None and found.isdisjoint(commit.most()):
                continue
            loose = self.instance.retained or self.instance.deletions or self.instance.gone or self.truth.rot
            loose = loose or self.instance.consumed_to or self.instance.keeps
            missing = [number for number in commit.least() if number not in found]
            if missing and not loose:
                self.fail(f"the commit {commit.key} is there without {missing}")

    def check_retention(self) -> None:
        """Caps hold after a restart as before."""
        if len(self.instance.options) != 1:
            return
        config = self.instance.options[0]
        if config.cap_records and config.discard == "old" and self.view.count > config.cap_records:
            self.fail(f"there are more than {config.cap_records} records")
        if config.cap_bytes and config.discard == "old" and self.view.bytes > config.cap_bytes:
            self.fail(f"there are more than {config.cap_bytes} bytes")


# ----------------------------------------------------------------- what must have arrived


def judge_arrivals(truth: Truth, views: Mapping[str, View], routers: Mapping[str, RouterState]) -> None:
    """Forwarders are idle: what is in a source and passes the filter is in the dest, unless that has got rid of it."""
    for name, state in routers.items():
        known = truth.routers[name]
        source, dest = truth.latest(state.source), truth.latest(state.dest)
        if source is None or dest is None or known.puts != 1 or known.start is None:
            continue
        if len(truth.instances[state.source]) > 1 or len(truth.instances[state.dest]) > 1:
            continue
        if state.lag:
            rejects = any(config.discard == "reject" for config in dest.configs)
            if not rejects:
                broken(f"router {name} does not get on: {state}")
            continue
        if dest.retained or dest.keeps or "ephemeral" in dest.ever or truth.rot or dest.buries:
            continue
        start = 0 if state.start == "earliest" else known.start
        _judge_router(truth, state, start, views[state.source], views[state.dest], dest)


def _judge_router(truth: Truth, state: RouterState, start: int, source: View, dest: View, instance: Instance) -> None:
    wanted = truth.plans[state.router]["filter"]
    passes = parse_match(wanted, "filter") if wanted is not None else None
    there = {record.data for record in dest.records.values()}
    went = {number for seq, number in instance.at.items() if instance.may_be_deleted(seq)}
    for seq, record in source.records.items():
        tag = msgspec.json.decode(record.body).get("$tag")
        if seq <= start or record.data in there or record.data in went:
            continue
        if (passes is not None and not passes.matches(tag)) or truth.batch_of[record.data][0].instance is instance:
            continue
        if instance.deleted_more or instance.consumed_to or any(reason != "source_trim" for _, _, reason in dest.gaps):
            continue
        broken(f"router {state.router}: record {record.data}, seq {seq} of {state.source}, is not in {state.dest}")
    _judge_consumed(truth, state, there | went)
    truth.checked["arrivals"] += len(source.records)


def _judge_consumed(truth: Truth, state: RouterState, arrived: set[int]) -> None:
    """What the consumers of a source have finished is deleted there when it has been copied."""
    source, known, plan = truth.latest(state.source), truth.routers[state.router], truth.plans[state.router]
    assert source is not None
    if source.retained or source.keeps or source.buries or "ephemeral" in source.ever:
        return
    passes = parse_match(plan["filter"], "filter") if plan["filter"] is not None else None
    for seq in source.consumed:
        number = source.at.get(seq)
        if number is None or source.told[seq] <= known.since:
            continue
        batch, i = truth.batch_of[number]
        if batch.instance is not source or (passes is not None and not passes.matches(batch.records[i].tag)):
            continue
        if number not in arrived:
            broken(f"router {state.router}: record {number}, seq {seq} of {state.source}, was deleted and not copied")
        truth.checked["consumed and copied"] += 1


def judge_salvaged(truth: Truth, views: Mapping[str, View]) -> None:
    """A log was damaged and salvaged: what is left is what was, in its place, and no seq will be given out again."""
    for name, view in views.items():
        for record in view.records.values():
            if record.data not in truth.batch_of:
                broken(f"{name}: nobody has appended {record.body}")
        if name not in truth.instances:
            if not truth.may_be_made(name):
                broken(f"{name} is there, and nobody has made it")
            continue  # the daemon has made it in the life that has just ended
        instance = truth.instances[name][-1]
        for seq, record in view.records.items():
            known = instance.at.get(seq, record.data)
            if view.epoch == instance.epoch and known != record.data:
                broken(f"{name}: seq {seq} was record {known} and is {record.data}")
        if view.epoch == instance.epoch and view.head < instance.head:
            broken(f"{name}: seqs up to {instance.head} were seen, and the head is {view.head}")
