"""What must not happen to jobs whose outcomes are judged, and what a start must show of them
(`docs/spec/consumers.md` sections 4 and 5).

A job is in one place until somebody asks for its end: in its queue, or unfinished in its group, or among the dead
letters. Only the move to the dead letters doubles it, if a crash comes between the copy
and the deletion; a redrive never does. The result of an ack is delivered once for each start that may have begun anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.simulator.known import Fate, Promise, broken, survives
from tests.simulator.outcomes.outcome_facts import AckedResult, JobSource, OutcomeJob, OutcomeLease
from tests.simulator.outcomes.outcome_plans import GROUP, LETTERS, LOG, RESULTS
from tests.simulator.outcomes.outcome_seen import OutcomesSeen


class OutcomeRules:
    """The facts of all sources, and what follows from them."""

    def __init__(self) -> None:
        self.sources: dict[str, JobSource] = {}
        """By the name of the topic."""
        self.jobs: dict[int, OutcomeJob] = {}
        """By number."""
        self.starts = 0
        """How many starts there were at which the daemon may have gone on with deliveries and moves."""
        self.judged = 0
        """How many there were at the last judgement."""
        self.ending: set[str] = set()
        """Tags of which somebody has cancelled all jobs in this life."""
        self.is_scattered = False
        """In this life letters may have gone elsewhere than they came from: a crash may bring back what is moved."""
        self.checked: Counter[str] = Counter()

    def source(self, name: str, plan: Mapping[str, Any]) -> JobSource:
        """A queue or a group, as it is planned."""
        if name not in self.sources:
            group = GROUP if name == LOG else None
            self.sources[name] = JobSource(name, group, dict(plan["terms"]), plan["durability"])
            self.sources[name].wants = {"completed" in plan["terms"]}
        return self.sources[name]

    # -- what clients do ---------------------------------------------------------------------------------------------

    def tell(self, source: JobSource, seq: int, number: int) -> None:
        """Somebody was told that a job is at this seq."""
        if number not in self.jobs:
            broken(f"{source.where}: nobody has appended record {number}, which is seq {seq}")
        known = source.at.setdefault(seq, number)
        if known != number:
            broken(f"{source.where}: seq {seq} was record {known} and is {number}")

    def claimed(self, source: JobSource, leases: Sequence[OutcomeLease], now: int) -> None:
        """Somebody was given jobs: they are not finished, and nobody else holds them. Those whose end was asked for may
        have ended since: a cancellation waits for a claim that is on its way."""
        for lease in leases:
            self.tell(source, lease.seq, lease.number)
            lease.over = lease.seq in source.maybe_ended or self.jobs[lease.number].tag in self.ending
            if source.ended_since.get(lease.seq, lease.asked) < lease.asked:
                kind = "cancelled" if lease.seq in source.cancelled else "finished"
                broken(f"{source.where}: {lease} was given out, and was {kind}")
            other = source.leases.get(lease.seq)
            if other is not None and not other.over and now < other.earliest_end:
                broken(f"{source.where}: seq {lease.seq} was given to {lease.node} at {now}, and {other} holds it")
            is_same = other is not None and other.life == lease.life and lease.deliveries > other.deliveries
            if other is not None and is_same and now < other.again_ms:
                broken(f"{source.where}: {lease} was given out at {now}, and was delayed by {other}")
        self._check_keys(source, leases, now)
        source.leases |= {lease.seq: lease for lease in leases}
        source.claimed |= {lease.seq for lease in leases}
        self.checked["outcome claims"] += len(leases)

    def _check_keys(self, source: JobSource, leases: Sequence[OutcomeLease], now: int) -> None:
        """No key has more jobs leased than it may; with an order that is one, but for the records that a redrive has
        given back to a group: later ones of their keys may be done."""
        limit = source.terms.get("max_in_flight_per_key")
        most = limit["max"] if limit is not None else 1 if "order_by" in source.terms else 0
        if not most or not leases:
            return
        given = {lease.seq: lease for lease in leases if not lease.over}
        held = {lease.seq: lease for lease in source.held(now, leases[0].life)}
        bound = [lease for seq, lease in (held | given).items() if limit is not None or seq not in source.reopened]
        counts = Counter(self.jobs[lease.number].tag for lease in bound)
        for key in {self.jobs[lease.number].tag for lease in leases} - {None}:
            if counts[key] > most:
                broken(f"{source.where}: {leases} were given out beside {held}, more than {most} of the key {key}")
            self.checked["keys"] += 1
            self.checked["full keys"] += counts[key] == most

    def redriven(self) -> None:
        """Somebody asks for letters to go back. A letter is of a job that was given to somebody."""
        for source in self.sources.values():
            if source.group is not None:
                source.reopened |= source.at.keys() if source.unanswered else source.claimed

    def ends(self, source: JobSource, seqs: Iterable[int]) -> None:
        """Somebody asks for the end of jobs."""
        for seq in seqs:
            source.maybe_ended.add(seq)
            if seq in source.leases:
                source.leases[seq].over = True
            if seq in source.at:
                self.jobs[source.at[seq]].must_be = False

    def cancelling(self, source: JobSource, tag: str) -> list[int]:
        """Somebody cancels all jobs with a tag. Return the seqs of those that anybody was told of."""
        self.ending.add(tag)
        for job in self.jobs.values():
            if job.tag == tag:
                job.must_be = False
        seqs = [seq for seq, number in source.at.items() if self.jobs[number].tag == tag]
        self.ends(source, seqs)
        return seqs

    def ended(self, source: JobSource, seqs: Iterable[int], now: int, *, cancelled: bool = False) -> None:
        """That was answered. A record of a group that is among the dead letters too may be given back to it."""
        for seq in seqs:
            number = source.at.get(seq)
            if source.group is not None and (number is None or self.jobs[number].most > 1):
                continue
            source.ended[seq] = max(source.promise, source.ended.get(seq, Promise.NONE))
            source.ended_since.setdefault(seq, now)
            if cancelled:
                source.cancelled.add(seq)

    def result_asked(self, source: JobSource, seq: int, value: bytes, node: str) -> AckedResult:
        """An ack has a result."""
        found = source.results.setdefault((seq, value, node), AckedResult(starts=self.starts))
        found.asks += 1
        found.is_loose |= False in source.wants
        return found

    def results_unwanted(self, source: JobSource) -> None:
        """Somebody asks for results not to be delivered any more: those that wait may be dropped."""
        source.wants.add(False)
        for result in source.results.values():
            result.is_loose = True

    # -- what a start shows ------------------------------------------------------------------------------------------

    def judge(self, seen: OutcomesSeen, fate: Fate, *, failed: bool, rot: bool) -> None:
        """What a recovery shows, before anything is moved. After damage records may be missing."""
        worst: Fate = "machine" if failed else fate
        for source in self.sources.values():
            if source.name not in seen.jobs:
                if source.created:
                    broken(f"{source.where} was made and is not there")
                continue
            for seq, number in seen.jobs[source.name].items():
                self.tell(source, seq, number)
            self._judge_ends(source, seen, worst)
            self._judge_results(source, seen, worst, failed=failed, rot=rot)
        self._judge_strangers(seen)
        self._judge_places(seen, worst, failed=failed, rot=rot)

    def _judge_ends(self, source: JobSource, seen: OutcomesSeen, fate: Fate) -> None:
        """What was acked or cancelled does not come again."""
        for seq, promise in source.ended.items():
            if seq not in seen.jobs[source.name] or not survives(promise, fate):
                continue
            if seq in source.cancelled:
                broken(f"{source.where} after {fate}: seq {seq} was cancelled and is there")
            if seq not in seen.completing[source.name]:
                broken(f"{source.where} after {fate}: seq {seq} was finished and comes again")
        self.checked["ends"] += len(source.ended)

    def _judge_results(self, source: JobSource, seen: OutcomesSeen, fate: Fate, *, failed: bool, rot: bool) -> None:
        """A result of an ack that was answered was delivered, or waits; none was delivered twice without a crash."""
        for (seq, value, node), result in source.results.items():
            where = f"{source.where} after {fate}: the result {value!r} of seq {seq}"
            found = seen.count(source.name, source.group, seq, node, value)
            waits = seen.waiting[source.name].get(seq) == value
            result.is_loose |= failed
            if found < result.shown and not rot:
                broken(f"{where} was there {result.shown} times, and now {found}")
            must = result.promise is not None and survives(result.promise, fate)
            if must and not found and not waits and not result.is_loose and not rot:
                broken(f"{where} is lost")
            most = result.asks * (1 + self.starts - result.starts)
            if found > most and not result.is_loose:
                broken(f"{where} was delivered {found} times")
            self.checked["results"] += bool(found)

    def _judge_strangers(self, seen: OutcomesSeen) -> None:
        """Every result and every letter is of a job of somebody; tags and data are what they were."""
        for one in seen.results:
            source = self.sources.get(one.topic)
            if source is None or source.group != one.group or (one.seq, one.value, one.node) not in source.results:
                broken(f"{RESULTS}: nobody has sent {one}")
        for (name, seq), tags in seen.result_tags.items():
            tag = self.jobs[self.sources[name].at[seq]].tag
            if tags - {tag, None}:
                broken(f"{RESULTS}: the results of {name} {seq} have the tags {tags}, and the job {tag}")
        for seq, letter in seen.letters.items():
            origin = self.sources.get(letter.topic)
            if origin is None or origin.group != letter.group:
                broken(f"{LETTERS}: seq {seq} is {letter}, of nobody")
            self.tell(origin, letter.src_seq, letter.number)
        for number, found in seen.tags.items():
            if found != {self.jobs[number].tag}:
                broken(f"record {number} has the tags {found}, and was given {self.jobs[number].tag}")
        for number, datas in seen.datas.items():
            if datas != {self.jobs[number].data}:
                broken(f"record {number} is {datas}, and was {self.jobs[number].data!r}")

    def _judge_places(self, seen: OutcomesSeen, fate: Fate, *, failed: bool, rot: bool) -> None:
        """No job is lost, and none is doubled but by the move to the dead letters."""
        places = self.places(seen)
        more = max(0, self.starts - self.judged - 1) + self.is_scattered
        for number, job in self.jobs.items():
            found = places[number]
            if found > job.most + more and not failed:
                broken(f"record {number} is in {found} places, of at most {job.most}: {seen.jobs}, {seen.letters}")
            if job.must_be and not found and survives(job.promise, fate) and not rot:
                broken(f"record {number} is nowhere after {fate}: {seen.jobs}, {seen.letters}")
        self.checked["places"] += len(places)

    @staticmethod
    def places(seen: OutcomesSeen) -> Counter[int]:
        """In how many places each job is. A letter whose job is still at its source does not count: the source has yet
        to end the move."""
        found = Counter(number for jobs in seen.jobs.values() for number in jobs.values())
        for letter in seen.letters.values():
            if letter.src_seq not in seen.jobs.get(letter.topic, {}):
                found[letter.number] += 1
        return found

    def restarted(self, seen: OutcomesSeen, *, clock_moved: bool) -> None:
        """A new life begins with this."""
        self.is_scattered, self.judged = False, self.starts
        self.ending = set()
        copies = Counter(number for jobs in seen.jobs.values() for number in jobs.values())
        copies.update(letter.number for letter in seen.letters.values())
        completing = Counter(seen.jobs[name][seq] for name, seqs in seen.completing.items() for seq in seqs)
        for number, job in self.jobs.items():
            job.must_be, job.promise = copies[number] > completing[number], Promise.ALL
            job.most = max(1, copies[number])
        for source in self.sources.values():
            if source.name in seen.jobs:
                self._restart(source, seen, clock_moved=clock_moved)

    def _restart(self, source: JobSource, seen: OutcomesSeen, *, clock_moved: bool) -> None:
        if source.unanswered:
            source.claimed |= source.at.keys()
        source.created, source.unanswered = True, 0
        source.wants = {seen.wants[source.name]}
        back = seen.jobs[source.name].keys() - seen.completing[source.name]
        source.ended = {seq: Promise.ALL for seq in source.ended if seq not in back}
        source.cancelled -= back
        source.ended_since = {seq: at for seq, at in source.ended_since.items() if seq in source.ended}
        source.maybe_ended = set()
        source.leases = {seq: lease for seq, lease in source.leases.items() if seq in back}
        for lease in source.leases.values():
            lease.over |= clock_moved or not lease.durable
        for (seq, value, node), result in source.results.items():
            result.shown = seen.count(source.name, source.group, seq, node, value)
            waits = seen.waiting[source.name].get(seq) == value
            result.promise = Promise.ALL if result.shown or waits else None

    def judge_end(self, seen: OutcomesSeen, came: Counter[int], *, rot: bool) -> None:
        """Everything has come to rest: every job came, as often as it was there, and no result waits."""
        for source in self.sources.values():
            if seen.jobs.get(source.name) or seen.waiting.get(source.name):
                broken(f"{source.where}: {seen.jobs[source.name]} and {seen.waiting[source.name]} do not end")
            if source.name in seen.jobs:
                self._judge_results(source, seen, "stop", failed=False, rot=rot)
        came = came + Counter(letter.number for letter in seen.letters.values())
        for number, job in self.jobs.items():
            if job.must_be and not came[number] and not rot:
                broken(f"record {number} never came")
            if came[number] > job.most:
                broken(f"record {number} came {came[number]} times, of at most {job.most}")
        self.checked["outcomes"] += len(came)
