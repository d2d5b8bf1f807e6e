"""The ledgers notice what they are for, and a short torment of a real daemon finds nothing.

Each example is a short story of what clients were told, and a view of the topic afterwards: once as it has to be, which
the ledger accepts, and once with one thing wrong, which it names.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.sse import Frame
from tests.crash.processes.clients import Watcher
from tests.crash.processes.jobs import Holding, QueueLedger
from tests.crash.processes.ledger import (
    SPAN,
    Batch,
    CopyLedger,
    Fault,
    Numbering,
    TopicLedger,
    View,
    record_of,
    tag_of,
)
from tests.crash.processes.torment import Plan, torment
from tests.crash.processes.transactions import Transaction, TransactionLedger

LATER = 10_000_000_000_000.0


# ----------------------------------------------------------------- what readers and daemons say


def read(number: int, seq: int, **more: Any) -> dict[str, Any]:
    """The record with this number as a reader gets it."""
    sent = record_of(number)
    found = {"$seq": seq, "$ts": 1000 + seq, "$tag": sent["tag"], "data": sent["data"]}
    if "node" in sent:
        found["$node"] = sent["node"]
    if "meta" in sent:
        found["meta"] = dict(sent["meta"])
    return found | more


def view(numbers: dict[int, int], gaps: Iterable[tuple[int, int, str]] = (), head: int | None = None) -> View:
    """A complete read that shows these numbers by seq."""
    records = {seq: read(number, seq) for seq, number in sorted(numbers.items())}
    top = max([*numbers, *(last for _, last, _ in gaps)], default=0) if head is None else head
    return View(records, list(gaps), top, min(numbers, default=top + 1), len(numbers))


def answer(first: int, count: int, *, deduped: bool = False) -> dict[str, Any]:
    return {"first_seq": first, "last_seq": first + count - 1, "count": count, "deduped": deduped}


def acked(ledger: TopicLedger, first: int, count: int, *, keyed: bool = False) -> Batch:
    batch = ledger.send(count, keyed=keyed)
    ledger.acked(batch, answer(first, count))
    return batch


def shown(*batches: Batch) -> dict[int, int]:
    """All of their numbers, by seq."""
    return {seq: number for batch in batches for seq, number in batch.numbered()}


def topic(durability: str = "fsync", **config: int) -> TopicLedger:
    return TopicLedger("t", durability, Numbering(), **config)


# ----------------------------------------------------------------- records


@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_an_acked_record_that_is_missing_is_noticed(durability: str) -> None:
    ledger = topic(durability)
    one, two = acked(ledger, 1, 2), acked(ledger, 3, 1)
    ledger.judge(view(shown(one, two)), "kill")
    with pytest.raises(Fault, match="lost after a kill"):
        ledger.judge(view(shown(one), head=3), "kill")
    with pytest.raises(Fault, match="lost after a kill"):
        ledger.judge(view(shown(one), [(3, 3, "lost")]), "kill")


def test_a_record_that_a_reader_saw_may_not_be_lost_though_nobody_acked_it() -> None:
    ledger = topic()
    batch = ledger.send(2)
    ledger.saw(read(batch.numbers[1], 2))
    with pytest.raises(Fault, match="lost after a kill"):
        ledger.judge(view({}, head=2), "kill")


def test_a_memory_topic_may_lose_its_end_and_has_to_announce_it() -> None:
    def told() -> tuple[TopicLedger, Batch, Batch]:
        ledger = topic("memory")
        return ledger, acked(ledger, 1, 2), acked(ledger, 3, 2)

    ledger, one, _ = told()
    ledger.judge(view(shown(one), [(3, 9, "lost")]), "kill")
    ledger.forget()
    assert ledger.batches.keys() == {one.id}
    with pytest.raises(Fault, match="refused, lost or deleted"):
        ledger.judge(view({**shown(one), 10: 2 * SPAN, 11: 2 * SPAN + 1}, [(3, 9, "lost")]), "kill")
    ledger, one, _ = told()
    with pytest.raises(Fault, match="lost and not announced"):
        ledger.judge(view(shown(one), head=9), "kill")
    ledger, one, two = told()
    with pytest.raises(Fault, match="what came later is there"):
        ledger.judge(view(shown(two), [(1, 2, "lost")]), "kill")
    ledger, one, _ = told()
    with pytest.raises(Fault, match="lost after a stop"):
        ledger.judge(view(shown(one), [(3, 9, "lost")]), "stop")


def test_what_a_memory_topic_had_after_a_restart_is_not_lost_by_the_next() -> None:
    ledger = topic("memory")
    one = acked(ledger, 1, 2)
    ledger.judge(view(shown(one)), "kill")
    with pytest.raises(Fault, match="lost after a kill"):
        ledger.judge(view({}, [(1, 2, "lost")]), "kill")


def test_an_ephemeral_topic_loses_everything_and_says_so() -> None:
    ledger = topic("ephemeral")
    batch = acked(ledger, 1, 2)
    with pytest.raises(Fault, match="has records after a restart"):
        ledger.judge(view(shown(batch)), "stop")
    with pytest.raises(Fault, match="nobody announces"):
        ledger.judge(view({}, head=2), "stop")
    ledger.judge(view({}, [(1, 2, "lost")]), "stop")


def test_a_seq_that_is_given_out_twice_is_noticed() -> None:
    ledger = topic()
    acked(ledger, 1, 3)
    with pytest.raises(Fault, match="given out twice"):
        acked(ledger, 3, 2)
    ledger = topic("memory")
    acked(ledger, 1, 3)
    ledger.judge(view({}, [(1, 3, "lost")]), "kill")
    with pytest.raises(Fault, match="a seq was used again"):
        acked(ledger, 3, 1)


def test_a_head_that_goes_back_is_noticed() -> None:
    ledger = topic("memory")
    one = acked(ledger, 1, 2)
    acked(ledger, 3, 2)
    with pytest.raises(Fault, match="the head went back"):
        ledger.judge(view(shown(one)), "kill")


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
def test_half_a_batch_is_noticed_whether_it_was_acked_or_not(durability: str) -> None:
    ledger = topic(durability)
    batch = ledger.send(3)
    first = batch.numbers[0]
    with pytest.raises(Fault, match="half a batch"):
        ledger.judge(view({1: first, 2: first + 1}, [(3, 3, "lost")]), "kill")
    ledger = topic(durability)
    batch = acked(ledger, 1, 3)
    with pytest.raises(Fault, match="half a batch"):
        ledger.judge(view({1: batch.id * SPAN}, [(2, 3, "lost")]), "kill")


def test_a_batch_without_an_answer_may_be_there_or_not() -> None:
    for is_there in (True, False):
        ledger = topic()
        batch = ledger.send(2)
        ledger.judge(view({1: batch.id * SPAN, 2: batch.id * SPAN + 1} if is_there else {}), "kill")
        ledger.forget()
        assert bool(ledger.batches) == is_there


def test_what_was_refused_never_sent_or_only_staged_must_not_be_there() -> None:
    ledger = topic()
    refused = ledger.send(1)
    ledger.refused(refused)
    staged = ledger.prepare(2, stages=1)
    for number in (refused.id * SPAN, staged.id * SPAN, 77 * SPAN):
        with pytest.raises(Fault, match="never sent here, refused"):
            ledger.judge(view({1: number}), "kill")
    sent = ledger.send(1)
    with pytest.raises(Fault, match="a number that nobody sent"):
        ledger.judge(view({1: sent.id * SPAN, 2: sent.id * SPAN + 1}), "kill")


def test_another_content_and_a_record_that_is_there_twice_are_noticed() -> None:
    ledger = topic()
    batch = acked(ledger, 1, 1)
    with pytest.raises(Fault, match="changed"):
        ledger.saw(read(batch.numbers[0], 1, **{"$tag": "other"}))
    with pytest.raises(Fault, match="twice"):
        ledger.judge(view({1: batch.id * SPAN, 2: batch.id * SPAN}), "kill")


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
def test_an_acked_deletion_stays(durability: str) -> None:
    def told() -> tuple[TopicLedger, Batch, Batch]:
        ledger = topic(durability)
        old, kept = acked(ledger, 1, 2), acked(ledger, 3, 2)
        ledger.deletion_acked(ledger.ask_deletion(3, None), {"head_seq": 4})
        return ledger, old, kept

    ledger, _, kept = told()
    ledger.judge(view(shown(kept)), "kill")
    ledger, old, kept = told()
    later = acked(ledger, 5, 1)
    with pytest.raises(Fault, match=r"are back|was undone"):
        # In a memory topic it may be undone together with what came after it, and with nothing less.
        ledger.judge(view(shown(old, kept, later)), "kill")
    ledger, old, kept = told()
    if durability == "memory":
        ledger.judge(view(shown(old, kept)), "kill")
    else:
        with pytest.raises(Fault, match="are back"):
            ledger.judge(view(shown(old, kept)), "kill")


def test_a_deletion_by_tag_takes_what_has_the_tag_and_nothing_else() -> None:
    ledger = topic()
    batch = acked(ledger, 1, 6)
    rest = {seq: number for seq, number in batch.numbered() if tag_of(number) != "t1"}
    ledger.deletion_acked(ledger.ask_deletion(6, "t1"), {"head_seq": 6})
    ledger.judge(view({seq: n for seq, n in batch.numbered() if seq in rest or seq == 6}), "kill")
    with pytest.raises(Fault, match="half a batch"):
        ledger.judge(view({seq: n for seq, n in rest.items() if seq != min(rest)}, head=6), "kill")


def test_a_deletion_without_an_answer_has_happened_or_not_but_not_by_half() -> None:
    for left in (True, False):
        ledger = topic()
        old, kept = acked(ledger, 1, 4), acked(ledger, 5, 1)
        ledger.ask_deletion(5, None)
        ledger.judge(view(shown(old, kept) if left else shown(kept)), "kill")
    ledger = topic()
    old, kept = acked(ledger, 1, 4), acked(ledger, 5, 1)
    ledger.ask_deletion(5, None)
    with pytest.raises(Fault, match="half a batch"):
        ledger.judge(view({**shown(kept), 1: old.id * SPAN}), "kill")


def test_a_gap_that_nobody_asked_for_and_nobody_announces_is_noticed() -> None:
    ledger = topic("memory")
    one = acked(ledger, 1, 1)
    with pytest.raises(Fault, match="a silent gap"):
        ledger.judge(view(shown(one), [(5, 7, "lost")]), "kill")
    with pytest.raises(Fault, match="a loss is announced"):
        topic().judge(view({}, [(1, 1, "lost")]), "kill")


def test_a_cap_is_exact_and_announced() -> None:
    ledger = topic(cap=3)
    one = acked(ledger, 1, 5)
    shows = dict(list(one.numbered())[2:])
    ledger.judge(view(shows, [(1, 2, "cap")]), "kill")
    with pytest.raises(Fault, match="what its cap says"):
        ledger.judge(view(dict(list(one.numbered())[3:]), [(1, 3, "cap")]), "kill")
    with pytest.raises(Fault, match="half a batch"):
        ledger.judge(view(shows, head=5), "kill")


def test_ttl_takes_nothing_that_is_young_and_leaves_nothing_that_is_old() -> None:
    ledger = topic(ttl_ms=3_600_000)
    one = acked(ledger, 1, 1)
    with pytest.raises(Fault, match="lost after a kill"):
        ledger.judge(view({}, [(1, 1, "ttl")]), "kill")
    late = view(shown(one))
    late.began = LATER
    with pytest.raises(Fault, match="expired, and there"):
        ledger.judge(late, "kill")


def test_a_key_is_known_if_its_batch_is_there_and_not_if_it_is_not() -> None:
    ledger = topic()
    one = acked(ledger, 1, 2, keyed=True)
    other = ledger.send(1, keyed=True)
    ledger.judge(view(shown(one)), "kill")
    assert ledger.to_repeat() == [one, other]
    ledger.repeated(one, answer(1, 2, deduped=True))
    with pytest.raises(Fault, match="a repeat is not known"):
        ledger.repeated(one, answer(3, 2))
    with pytest.raises(Fault, match="known, and it is not there"):
        ledger.repeated(other, answer(3, 1, deduped=True))
    ledger.repeated(other, answer(3, 1))
    ledger.judge(view(shown(one, other)), "kill")


def test_a_commit_is_as_safe_as_an_fsync_in_a_memory_topic_too() -> None:
    ledger = topic("memory")
    commit = ledger.prepare(4, stages=2)
    ledger.let_go(commit)
    ledger.acked(commit, answer(1, 4))
    with pytest.raises(Fault, match="lost after a kill"):
        ledger.judge(view({}, [(1, 4, "lost")]), "kill")


def test_figures_that_are_not_those_of_the_view_are_noticed() -> None:
    ledger = topic()
    wrong = view(shown(acked(ledger, 1, 2)))
    wrong.count = 3
    with pytest.raises(Fault, match="miscounted"):
        ledger.judge(wrong, "kill")


# ----------------------------------------------------------------- copies


def fed() -> tuple[TopicLedger, CopyLedger, Batch]:
    """A source with a batch that is judged, and a topic that it feeds."""
    source = topic()
    batch = acked(source, 1, 2)
    source.judge(view(shown(batch)), "kill")
    return source, CopyLedger("copies", "disk", [source]), batch


def test_copies_are_there_once_whole_and_come_from_the_source() -> None:
    _, copies, batch = fed()
    first = batch.id * SPAN
    copies.judge(view({1: first, 2: first + 1}), "kill")
    for numbers, problem in (
        ({1: first + 1, 2: first}, "seq 1 is"),
        ({1: first, 2: first + 1, 3: first}, "twice"),
        ({1: first}, "the head went back"),
        ({1: first, 2: first + 1, 3: 55 * SPAN}, "a copy of nothing"),
        ({1: first, 3: first + 1}, "lost copies"),
    ):
        with pytest.raises(Fault, match=problem):
            copies.judge(view(numbers), "kill")
    _, copies, _ = fed()
    with pytest.raises(Fault, match="were not copied"):
        copies.judge(view({1: first}), "kill")


def test_a_copy_that_comes_again_after_both_ends_were_trimmed_is_noticed() -> None:
    source, copies, batch = fed()
    first = batch.id * SPAN
    copies.judge(view({1: first, 2: first + 1}), "kill")
    later = acked(source, 3, 1)
    source.deletion_acked(source.ask_deletion(3, None), {"head_seq": 3})
    source.judge(view(shown(later)), "kill")
    source.forget()
    copies.judge(view({1: first, 2: first + 1, 3: later.id * SPAN}), "kill")
    assert copies.first_live() == 3
    copies.trimmed(3)
    with pytest.raises(Fault, match="a copy of nothing"):
        copies.judge(view({3: later.id * SPAN, 4: first}), "kill")
    with pytest.raises(Fault, match="deleted copies are back"):
        copies.judge(view({2: first + 1, 3: later.id * SPAN}), "kill")


def test_what_a_filter_holds_back_must_not_be_copied() -> None:
    _, copies, batch = fed()
    copies.passes = lambda number: number % SPAN == 0
    copies.judge(view({1: batch.id * SPAN}), "kill")
    with pytest.raises(Fault, match="the filter holds back"):
        copies.judge(view({1: batch.id * SPAN, 2: batch.id * SPAN + 1}), "kill")


# ----------------------------------------------------------------- jobs


class Jobs:
    """A queue with three jobs."""

    def __init__(self, *, leases_durable: bool = True) -> None:
        self.ledger = QueueLedger("q", "fsync", Numbering(), leases_durable=leases_durable, max_deliveries=3)
        self.batch = acked(self.ledger, 1, 3)

    def claim(self, seq: int, deliveries: int = 1, *, came: float = 0, life: int = 1, lease: float = 500) -> Holding:
        times = {"lease_id": f"lease_{seq}_{deliveries}", "deadline": came + lease, "deliveries": deliveries}
        return self.ledger.claimed("w", read(self.batch.id * SPAN + seq - 1, seq) | times, life, came)

    def ack(self, holding: Holding, *, skipped: Iterable[int] = (), at: float = 10, life: int = 1) -> None:
        self.ledger.ask_ack([holding])
        self.ledger.ack_answered([holding], set(skipped), life, at, at)

    def judge(self, *seqs: int) -> None:
        self.ledger.judge(view({seq: self.batch.id * SPAN + seq - 1 for seq in seqs}, head=3), "kill")


@pytest.mark.parametrize("leases_durable", [True, False])
def test_two_holders_of_a_job_are_noticed(leases_durable: bool) -> None:
    jobs = Jobs(leases_durable=leases_durable)
    jobs.claim(1)
    with pytest.raises(Fault, match="two holders"):
        jobs.claim(1, 2, came=100)
    with pytest.raises(Fault, match="two holders"):
        jobs.claim(1, 1, came=1000)
    jobs.claim(1, 2, came=600)


def test_after_a_kill_a_job_may_have_another_holder_unless_leases_are_durable() -> None:
    Jobs(leases_durable=False).claim(1)
    jobs = Jobs(leases_durable=False)
    jobs.claim(1)
    jobs.claim(1, 1, came=100, life=2)
    jobs = Jobs()
    jobs.claim(1)
    with pytest.raises(Fault, match="two holders"):
        jobs.claim(1, 2, came=100, life=2)


def test_a_job_that_was_given_back_may_be_claimed_and_one_whose_lease_was_made_shorter_too() -> None:
    jobs = Jobs()
    held = jobs.claim(1)
    jobs.ledger.ask_release([held], 50)
    jobs.claim(1, 2, came=60)
    jobs = Jobs()
    held = jobs.claim(1)
    jobs.ledger.ask_extension([held], 150)
    jobs.ledger.extended([held], {"1": 900})
    with pytest.raises(Fault, match="two holders"):
        jobs.claim(1, 2, came=600)


def test_an_acked_job_never_comes_back() -> None:
    jobs = Jobs()
    jobs.ack(jobs.claim(1))
    with pytest.raises(Fault, match="a job was claimed that was over"):
        jobs.claim(1, 2, came=9000)
    with pytest.raises(Fault, match="are back"):
        jobs.judge(1, 2, 3)
    jobs.judge(2, 3)
    with pytest.raises(Fault, match="a job was claimed that was over"):
        jobs.claim(1, 2, came=9000, life=2)


def test_an_ack_without_an_answer_has_counted_or_not() -> None:
    for left in ((1, 2, 3), (2, 3)):
        jobs = Jobs()
        jobs.ledger.ask_ack([jobs.claim(1)])
        jobs.judge(*left)
    with pytest.raises(Fault, match=r"lost after a kill|half a batch"):
        jobs.judge(3)


def test_an_ack_by_somebody_else_and_an_ack_that_is_skipped_for_nothing_are_noticed() -> None:
    jobs = Jobs()
    late = jobs.claim(1)
    jobs.claim(1, 2, came=600)
    jobs.ack(late, skipped=[1], at=700)
    with pytest.raises(Fault, match="does not hold it"):
        jobs.ack(late, at=700)
    with pytest.raises(Fault, match="skipped for no reason"):
        jobs.ack(jobs.claim(2), skipped=[2], at=100)


def letter(jobs: Jobs, seq: int, deliveries: int = 3) -> dict[str, Any]:
    more = {"$dead_letter_from": "q", "$dead_letter_src_seq": str(seq), "$dead_letter_deliveries": str(deliveries)}
    record = read(jobs.batch.id * SPAN + seq - 1, seq)
    return record | {"meta": record.get("meta", {}) | more}


def test_a_job_is_in_the_queue_or_among_the_dead_letters_and_never_nowhere() -> None:
    jobs = Jobs()
    jobs.claim(1, 3)
    jobs.ledger.bury([letter(jobs, 1)])
    jobs.judge(2, 3)
    jobs.ledger.bury([letter(jobs, 1)])
    jobs.judge(2, 3)
    with pytest.raises(Fault, match="half a batch"):
        jobs.judge(3)
    jobs = Jobs()
    with pytest.raises(Fault, match="too early"):
        jobs.ledger.bury([letter(jobs, 1, deliveries=2)])
    jobs.ack(jobs.claim(2))
    with pytest.raises(Fault, match="a job that was over"):
        jobs.ledger.bury([letter(jobs, 2)])
    with pytest.raises(Fault, match="delivered too often"):
        jobs.claim(3, 4)


# ----------------------------------------------------------------- transactions


class Trades:
    """Two topics with transactions over both, and one with a cap."""

    def __init__(self) -> None:
        numbering = Numbering()
        self.a, self.b = (TopicLedger(name, "fsync", numbering) for name in "ab")
        self.capped = TopicLedger("c", "fsync", numbering, cap=2)
        self.ledger = TransactionLedger([self.a, self.b], [self.capped], numbering)

    def send(self, *ledgers: TopicLedger, token: int = 0) -> Transaction:
        """One over these topics, with two records and a key."""
        batches = [(ledger, ledger.prepare(2)) for ledger in ledgers or (self.a, self.b)]
        transaction = Transaction(batches, "k", token, time.monotonic())
        self.ledger.let_go(transaction)
        return transaction

    def ack(self, transaction: Transaction, first: int, *, deduped: bool = False) -> None:
        self.ledger.answered(transaction, self.answer(transaction, first, deduped=deduped))

    @staticmethod
    def answer(transaction: Transaction, first: int, *, deduped: bool = False) -> dict[str, Any]:
        appends = [
            {"topic": ledger.name, "first_seq": first, "last_seq": first + 1, "count": 2}
            for ledger, _ in transaction.batches
        ]
        return {"appends": appends, "deduped": deduped}

    def judge(self, **views: View) -> None:
        for ledger in (self.a, self.b, self.capped):
            ledger.judge(views.get(ledger.name, view({})), "kill")
        self.ledger.judge()


def placed(transaction: Transaction, name: str, first: int = 1) -> dict[int, int]:
    """Numbers by seq of what is of a transaction in one topic."""
    ((_, batch),) = [pair for pair in transaction.batches if pair[0].name == name]
    return dict(enumerate(batch.numbers, first))


def test_a_transaction_without_an_answer_is_there_in_all_of_its_topics_or_in_none() -> None:
    trades = Trades()
    one = trades.send()
    trades.judge(a=view(placed(one, "a")), b=view(placed(one, "b")))
    assert (trades.ledger.settled, trades.ledger.undone) == (1, 0)
    trades = Trades()
    trades.send()
    trades.judge()
    assert (trades.ledger.settled, trades.ledger.undone) == (0, 1)
    for name in "ab":
        trades = Trades()
        one = trades.send()
        with pytest.raises(Fault, match="there in part"):
            trades.judge(**{name: view(placed(one, name))})
    trades = Trades()
    one = trades.send(trades.a, trades.capped)
    with pytest.raises(Fault, match="there in part"):
        trades.judge(c=view(placed(one, "c")))
    trades = Trades()
    one = trades.send(trades.a, trades.capped)
    later = acked(trades.capped, 3, 2)
    trades.judge(a=view(placed(one, "a")), c=view(shown(later), [(1, 2, "cap")]))


def test_an_acked_transaction_stays_and_one_that_is_undone_leaves_its_seqs_empty() -> None:
    trades = Trades()
    one = trades.send()
    trades.ack(one, 1)
    with pytest.raises(Fault, match="lost after a kill"):
        trades.judge(a=view(placed(one, "a")), b=view({}, head=2))
    trades = Trades()
    trades.send()
    later = trades.a.send(1)
    trades.judge(a=view({3: later.numbers[0]}))
    trades.judge(a=view({3: later.numbers[0]}))
    with pytest.raises(Fault, match="a silent gap"):
        trades.judge(a=view({3: later.numbers[0]}, head=4))
    trades = Trades()
    trades.send()
    later = trades.a.send(1)
    with pytest.raises(Fault, match="a silent gap"):
        trades.judge(a=view({2: later.numbers[0]}))
    trades = Trades()
    trades.send()
    before = acked(trades.a, 3, 1)
    with pytest.raises(Fault, match="a silent gap"):
        trades.judge(a=view(shown(before)))


def test_a_key_of_a_transaction_and_its_fence_are_as_its_records_are() -> None:
    for is_there in (True, False):
        trades = Trades()
        one = trades.send(token=4)
        trades.judge(**({name: view(placed(one, name)) for name in "ab"} if is_there else {}))
        trades.ledger.check_fences("a", {"writer": 4} if is_there else {})
        with pytest.raises(Fault, match="another fence"):
            trades.ledger.check_fences("a", {"writer": 3})
        assert trades.ledger.to_repeat() == [one]
        with pytest.raises(Fault, match="a repeat is not known, or is"):
            trades.ledger.repeated(one, trades.answer(one, 1, deduped=not is_there))
        trades.ledger.repeated(one, trades.answer(one, 1, deduped=is_there))
        trades.judge(**{name: view(placed(one, name)) for name in "ab"})
        with pytest.raises(Fault, match="a repeat is elsewhere"):
            trades.ack(one, 3, deduped=True)


# ----------------------------------------------------------------- streams


def pushed(event: str, **data: Any) -> Frame:
    return Frame("-", event, json.dumps(data).encode(), {"topic": "t", "head_seq": 9, **data})


def test_a_stream_tells_everything_once_and_announces_its_gaps() -> None:
    ledger = topic("memory")
    batch = acked(ledger, 1, 4)
    records = [read(number, seq) for seq, number in batch.numbered()]

    def watching() -> Callable[[Frame], None]:
        watcher = Watcher({"t": ledger}, is_socket=False)
        watcher.take(pushed("record", from_seq=0, to_seq=2, records=records[:2]))
        return watcher.take

    watching()(pushed("record", from_seq=2, to_seq=4, records=records[2:]))
    watching()(pushed("tombstone", gap_from=3, gap_to=9, earliest_seq=1, reason="lost"))
    for frame, problem in (
        (pushed("record", from_seq=1, to_seq=4, records=records[1:]), "told twice"),
        (pushed("record", from_seq=3, to_seq=4, records=records[3:]), "jumps"),
        (pushed("record", from_seq=2, to_seq=4, records=records[3:]), "a silent gap in a stream"),
        (pushed("caught-up", head_seq=4), "a silent gap in a stream"),
        (pushed("tombstone", gap_from=4, gap_to=9, earliest_seq=1, reason="lost"), "jumps"),
        (pushed("tombstone", gap_from=1, gap_to=2, earliest_seq=1, reason="lost"), "told twice"),
        (pushed("tombstone", gap_from=1, gap_to=9, earliest_seq=1, reason="recreated"), "must not be"),
    ):
        with pytest.raises(Fault, match=problem):
            watching()(frame)
    ledger.ask_deletion(4, None)
    watching()(pushed("record", from_seq=2, to_seq=4, records=records[3:]))


# ----------------------------------------------------------------- the real thing


@pytest.mark.slow
def test_a_daemon_that_is_killed_at_random_moments_keeps_all_its_promises(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    figures = torment(Plan(seed=12, minutes=0.6, kills=8, is_small=True), tmp_path)
    for name, figure in figures.items():
        record_property(name, figure)
    print(figures)
    assert figures["records acked"] > 500
    assert figures["records delivered to watchers"] > 500
    assert figures["jobs acked"] > 20


@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, 3])
def test_transactions_of_a_daemon_that_is_killed_are_whole_or_not_there(
    tmp_path: Path, record_property: Callable[[str, object], None], shards: int
) -> None:
    figures = torment(Plan(seed=5, minutes=0.4, kills=6, only_transactions=True, shards=shards), tmp_path)
    for name, figure in figures.items():
        record_property(name, figure)
    print(figures)
    assert figures["transactions acked"] > 30
    assert figures["transactions there after a restart"] > 30
