"""Transactions of real clients: each is there whole or not at all after a kill, in all of its topics.

The records of a transaction are batches of the ledgers of its topics, which judge what they judge of any batch. What
they cannot see, that the batches of one transaction share one fate, is judged here, and so are keys and fences. Of a
topic from which caps, ttl or clients take records nobody can tell that a batch was never there: such a topic says only
that a transaction is there.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tests.crash.processes.clients import Caller, Life
from tests.crash.processes.ledger import KEY_AGE_S, KEYS_KEPT, Batch, Numbering, TopicLedger, require

FENCE: Final = "writer"
MOST_TOPICS: Final = 4
TRIMMED_ABOVE: Final = 1500
"""Records of a topic that nobody deletes from while it is used."""


@dataclass(slots=True, eq=False)
class Transaction:
    """A transaction that was sent, and its batches."""

    batches: list[tuple[TopicLedger, Batch]]
    key: str | None
    token: int
    """Of the fence in its first topic."""
    sent_at: float
    is_acked: bool = False

    def body(self) -> dict[str, Any]:
        """What is sent, and sent again."""
        appends: list[dict[str, Any]] = [
            {"topic": ledger.name, "records": batch.records()} for ledger, batch in self.batches
        ]
        if self.token:
            appends[0]["fence"] = {"name": FENCE, "token": self.token}
        body: dict[str, Any] = {"appends": appends}
        return body if self.key is None else body | {"idempotency_key": self.key}

    def __str__(self) -> str:
        return f"{self.key}: {[(ledger.name, batch) for ledger, batch in self.batches]}"


@dataclass
class TransactionLedger:
    """What was told of transactions. `complete` are topics from which nothing is taken while they are used, `others`
    those from which something may be. Used by many threads."""

    complete: Sequence[TopicLedger]
    others: Sequence[TopicLedger]
    numbering: Numbering
    fences: dict[str, int] = field(default_factory=dict)
    """The highest token that was certainly seen, by topic."""
    acked: int = 0
    settled: int = 0
    undone: int = 0
    """Those without an answer that were not there after a restart."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    _open: list[Transaction] = field(default_factory=list)
    """Those that are not judged yet."""
    _keyed: deque[Transaction] = field(default_factory=lambda: deque(maxlen=KEYS_KEPT))

    def send(self, rng: random.Random, token: int) -> Transaction:
        """One that is about to leave, over 2 topics or more. With a token it raises a fence in the first one."""
        chosen = rng.sample(self.complete, rng.randint(1, min(3, len(self.complete))))
        rest = [ledger for ledger in [*self.complete, *self.others] if ledger not in chosen]
        chosen += rng.sample(rest, rng.randint(1, MOST_TOPICS - len(chosen)))
        batches = [(ledger, ledger.prepare(rng.choice([1, 1, 2, 5, 20]))) for ledger in chosen]
        key = f"transaction-{self.numbering.take()}" if rng.random() < 0.5 else None
        transaction = Transaction(batches, key, token, time.monotonic())
        self.let_go(transaction)
        return transaction

    def let_go(self, transaction: Transaction) -> None:
        """It is about to be sent, for the first time or because it is not there."""
        for ledger, batch in transaction.batches:
            batch.is_part = True
            ledger.let_go(batch)
        with self.lock:
            self._open.append(transaction)

    def answered(self, transaction: Transaction, answer: Mapping[str, Any]) -> None:
        """It was acked, for the first time or again."""
        appends = answer["appends"]
        names = [ledger.name for ledger, _ in transaction.batches]
        require([one["topic"] for one in appends] == names, names[0], "an answer about other topics:", answer)
        for (ledger, batch), one in zip(transaction.batches, appends, strict=True):
            if batch.first_seq:
                found = (batch.first_seq, batch.count)
                require((one["first_seq"], one["count"]) == found, ledger.name, "a repeat is elsewhere:", batch, one)
            else:
                ledger.acked(batch, one | {"deduped": answer["deduped"]})
        with self.lock:
            self.acked += not transaction.is_acked
            transaction.is_acked = True
            first = names[0]
            self.fences[first] = max(transaction.token, self.fences.get(first, 0))
            if transaction.key is not None and transaction not in self._keyed:
                self._keyed.append(transaction)

    def refused(self, transaction: Transaction) -> None:
        """It was refused before it had seqs."""
        for ledger, batch in transaction.batches:
            ledger.refused(batch)
        with self.lock:
            self._open.remove(transaction)

    def judge(self) -> None:
        """Each is there whole or not at all. To be called when the ledgers of all topics have judged."""
        with self.lock:
            transactions, self._open = self._open, []
            for transaction in transactions:
                there = {ledger.name: batch.is_settled for ledger, batch in transaction.batches}
                said = {there[ledger.name] for ledger in self.complete if ledger.name in there}
                is_there = any(there.values())
                require(said == {is_there}, "transactions", "there in part:", there, transaction)
                require(is_there or not transaction.is_acked, "transactions", "acked, and not there:", transaction)
                self.settled += is_there
                self.undone += not is_there
                first = transaction.batches[0][0].name
                if is_there:
                    self.fences[first] = max(transaction.token, self.fences.get(first, 0))
                if transaction.key is not None and transaction not in self._keyed:
                    self._keyed.append(transaction)

    def check_fences(self, topic: str, shown: Mapping[str, int]) -> None:
        """The fences of a topic at rest are those that its records have raised."""
        expected = self.fences.get(topic, 0)
        require(shown.get(FENCE, 0) == expected, topic, "another fence:", shown, "and not", expected)

    def to_repeat(self) -> list[Transaction]:
        """Those with keys, to send again after a restart. Their answers go to `repeated`."""
        with self.lock:
            now = time.monotonic()
            chosen = [one for one in self._keyed if now - one.sent_at < KEY_AGE_S]
            self._keyed.clear()
            return chosen

    def is_late(self, transaction: Transaction) -> bool:
        """Whether a repeat is refused: it is not there, and others have raised the fence above its token since."""
        is_there = transaction.is_acked or any(batch.is_settled for _, batch in transaction.batches)
        highest = self.fences.get(transaction.batches[0][0].name, 0)
        return not is_there and 0 < transaction.token < highest

    def repeated(self, transaction: Transaction, answer: Mapping[str, Any]) -> None:
        """One was sent again: what was there is answered as it was, what was not is there now."""
        was = transaction.is_acked or any(batch.is_settled for _, batch in transaction.batches)
        require(not self.is_late(transaction), "transactions", "a token below the fence was taken:", transaction)
        require(answer["deduped"] == was, "transactions", "a repeat is not known, or is:", transaction, answer)
        if not was:
            self.let_go(transaction)
        self.answered(transaction, answer)


@dataclass
class Transactor:
    """Transactions, one after another; some are sent twice, some with a token that is too old."""

    ledger: TransactionLedger
    pause: float = 0.02

    def __call__(self, life: Life, rng: random.Random) -> None:
        caller = Caller(life)
        while not life.over.is_set():
            token = life.number if rng.random() < 0.3 else 0
            transaction = self.ledger.send(rng, token)
            status, answer = caller.send("POST", "/transactions", transaction.body())
            if status == 429:
                self.ledger.refused(transaction)
                continue
            require(not answer["deduped"], "transactions", "known, and it was never sent:", transaction, answer)
            self.ledger.answered(transaction, answer)
            if transaction.key is not None and rng.random() < 0.2:
                again = caller.ask("POST", "/transactions", transaction.body())
                require(again["deduped"], "transactions", "a repeat is not known:", transaction, again)
                self.ledger.answered(transaction, again)
            if rng.random() < 0.1:
                self._be_late(caller, rng)
            life.rest(rng, self.pause)

    def _be_late(self, caller: Caller, rng: random.Random) -> None:
        """With a token below the fence nothing is stored in any topic."""
        first = rng.choice(self.ledger.complete)
        highest = self.ledger.fences.get(first.name, 0)
        if highest < 2:
            return
        late = self.ledger.send(rng, highest - 1)
        late.batches.sort(key=lambda pair: pair[0] is not first)
        if late.batches[0][0] is not first:
            late.token = 0
        allowed = (409,) if late.token else ()
        status, answer = caller.send("POST", "/transactions", late.body(), allowed=allowed)
        if late.token:
            require(status in (409, 429), first.name, "a token below the fence was taken:", late, answer)
        if status in (409, 429):
            self.ledger.refused(late)
        else:
            self.ledger.answered(late, answer)
