"""Transactions: appends to several topics; all of them are stored, or none (`docs/spec/consumers.md` section 1,
`docs/design/transactions.md`).

Responsible for admission of all appends together, and for the one step of the loop in which they get their seqs.
`topics.engine.transaction` handles a transaction from then until it is published or undone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import msgspec
import trio

from topics.config import Settings
from topics.engine.commits import Commits, time_commit
from topics.engine.idempotency_keys import IdempotencyKeys
from topics.engine.operations.append import (
    Appends,
    check_may_be_made,
    waits_for_pending,
)
from topics.engine.operations.judge import FoundTags, check_missing
from topics.engine.operations.large_batches import LARGE_BATCH_BYTES, LargeBatch
from topics.engine.operations.member_commits import MemberCommits
from topics.engine.operations.new_jobs import check_jobs, refuse_unique
from topics.engine.operations.schema_checks import check_records
from topics.engine.record_columns import COMMIT_TURN_BYTES, AppendColumns, columns_of
from topics.engine.registry import Registry
from topics.engine.topic import Commit, Topic
from topics.engine.transaction import MemberCommit, Transaction
from topics.errors import ApiError, invalid
from topics.log.topic_config import resolve_config
from topics.log.transaction_keys import MemberSeqs, TransactionKeys
from topics.model import (
    AppendRequest,
    Durability,
    MemberResult,
    Performance,
    TopicConfig,
    TopicConfigPatch,
    TransactionRequest,
    TransactionResult,
)
from topics.runtime.clock import Clock
from topics.runtime.turns import Turns


class _Member(NamedTuple):
    """One append of a transaction, checked."""

    name: str
    request: AppendRequest
    config: TopicConfig | None
    """The config that the request has for the topic if it must be created."""
    batch: AppendColumns


class _Judged:
    """Results of judging the appends of one call, kept while the call starts over."""

    __slots__ = ("schemas", "tags")

    def __init__(self) -> None:
        self.schemas: dict[str, msgspec.Raw] = {}
        """The schema that the records for a topic have passed, by the name of the topic."""
        self.tags: FoundTags = {}


class Transactions:
    """The call. Made once by the engine; `expire` must be called regularly."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        registry: Registry,
        *,
        commits: Commits,
        members: MemberCommits,
        keys: IdempotencyKeys,
        appends: Appends,
        turns: Turns,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._registry = registry
        self._commits = commits
        self._members = members
        self._keys = keys
        self._appends = appends
        self._turns = turns
        self._in_flight: dict[tuple[int, str], trio.Event] = {}
        """Events for the ends of the transactions in flight, by id of the first topic and key."""

    async def append(self, request: TransactionRequest, perf: Performance) -> TransactionResult:
        """Append to all topics of a checked request or to none; returns when all records are synced and visible.

        Raises the errors of an append to one of the topics, with the topic's name in `detail.topic`, and `409
        topic_exists_incompatible` for a topic of class `ephemeral` or `memory`. Cancelling before seqs are assigned
        leaves no record; after that all records are stored all the same, and only the answer is lost.
        """
        members = []
        for name, one in zip(request.topics, request.appends, strict=True):
            with _about(name):
                batch = columns_of(one)
                refuse_unique(batch.jobs, "a transaction")
                members.append(_Member(name, one, self._appends.inline_config(name, one), batch))
        key = request.idempotency_key
        created: set[str] = set()
        judged = _Judged()
        waited = 0.0
        has_turn = False
        ahead: list[LargeBatch] = []
        while True:
            known = await self._known(request.topics, key)
            if known is not None:
                perf.wal_append_ms = perf.fsync_ms = 0.0
                return known
            missing = self._missing(members)
            if missing:
                if await self._may_be_stored(members, judged):
                    await self._make(missing, key, created)
                continue
            topics = [self._registry.topics[member.name] for member in members]
            admitted, slept_ms = await self._admitted(topics, members, waited)
            waited += slept_ms
            if not admitted:
                has_turn = False
                continue
            cost = sum(member.batch.cost for member in members)
            if cost >= COMMIT_TURN_BYTES and not has_turn:
                if cost >= LARGE_BATCH_BYTES and not ahead:
                    ahead = await self._encoded_ahead(topics, members)
                else:
                    await self._turns.take(cost)
                has_turn = True
                continue
            if not await self._may_be_stored(members, judged):
                has_turn = False
                continue
            break
        self._check_room(topics, members, key)
        if waited:
            perf.throttle_wait_ms = waited
        fits = ahead and all(one.fits(topic) for one, topic in zip(ahead, topics, strict=True))
        transaction = self._send(topics, members, key, ahead if fits else None)
        try:
            await transaction.answer()
        except ApiError as error:
            failed = transaction.failed_topic or topics[0]
            raise _with_topic(error, failed.name) from error
        time_commit(max(transaction.members, key=lambda one: one.synced_ns), perf)
        return _answer([_seqs_of(member) for member in transaction.members], created)

    def expire(self) -> None:
        """Called every second: forget the keys whose window is over."""
        now = self._registry.windows.now_ms()
        for topic in list(self._registry.remembering):
            assert topic.transactions is not None
            before = topic.transactions.members
            if not topic.transactions.expire(now, topic.config.idempotency_window_ms):
                continue
            self._keys.count += topic.transactions.members - before
            topic.mark_changed()
            if not len(topic.transactions):
                topic.transactions = None
                self._registry.remembering.discard(topic)

    # -- admission ---------------------------------------------------------------------------------------------------

    async def _known(self, topics: Sequence[str], key: str | None) -> TransactionResult | None:
        """Return the answer of an earlier transaction with this key, None if there was none. Waits for the end of a
        transaction in flight with this key. There is no await between the last look-up and the return.

        Raises 400 if the earlier transaction had other topics, because the caller's API key may not cover them.
        """
        first = topics[0]
        while True:
            topic = self._registry.topics.get(first)
            if topic is None or key is None:
                return None
            if topic.transactions is not None:
                window_ms = topic.config.idempotency_window_ms
                known = topic.transactions.lookup(key, self._registry.windows.now_ms(), window_ms)
                if known is not None:
                    if {member.topic for member in known.members} != set(topics):
                        raise invalid("idempotency_key", "is that of a transaction over other topics")
                    return _answer(known.members, frozenset(), deduped=True)
            in_flight = self._in_flight.get((topic.id, key))
            if in_flight is None:
                return None
            with _about(first):
                await self._commits.wait_for(in_flight)

    def _missing(self, members: Sequence[_Member]) -> list[_Member]:
        """Return the appends whose topics do not exist yet. Raises `404 topic_not_found` if a topic must not be made,
        and `409 topic_exists_incompatible` if a topic has, or would get, a class that transactions do not support."""
        missing = []
        for member in members:
            topic = self._registry.topics.get(member.name)
            with _about(member.name):
                if topic is None:
                    check_may_be_made(member.name, member.request, _future(member))
                    missing.append(member)
                is_queue = (topic.config if topic is not None else _future(member)).type == "queue"
                check_jobs(member.batch.jobs, is_queue=is_queue, wall_ms=self._clock.now_ms())
                _check_class(member.name, topic.config.durability if topic is not None else _future(member).durability)
        return missing

    async def _may_be_stored(self, members: Sequence[_Member], judged: _Judged) -> bool:
        """Return True if no append breaks the schema of its topic and all conditions hold; then there was no await
        before the return. Return False if it had to wait; the caller starts over. Stores and makes nothing. Raises 422,
        409, 503."""
        for member in members:
            conditions = member.request.conditions
            with _about(member.name):
                topic = self._registry.topics.get(member.name)
                if topic is not None and not await self._commits.settled(topic):
                    return False
                schema = topic.config.schema if topic is not None else _future(member).schema
                if schema is not None and schema is not judged.schemas.get(member.name):
                    judged.schemas[member.name] = schema
                    if await check_records(schema, member.batch.datas, self._turns, shares_step=True):
                        return False
                if conditions is None:
                    continue
                if topic is None:
                    check_missing(conditions, ephemeral=False)
                elif not await self._appends.judge.holds(topic, conditions, judged.tags):
                    return False
        return True

    async def _make(self, missing: Sequence[_Member], key: str | None, created: set[str]) -> None:
        """Make the topics that are missing, and add their names to `created`."""
        if key is not None:
            self._keys.check_room()  # a transaction that will be refused must not leave a topic behind
        for member in missing:
            with _about(member.name):
                self._commits.check_space()
                if await self._appends.create(member.name, member.request, member.config):
                    created.add(member.name)

    async def _admitted(self, topics: Sequence[Topic], members: Sequence[_Member], waited: float) -> tuple[bool, float]:
        """Return True if all appends can get their seqs now; then there was no await before the return. Otherwise wait
        for a barrier, columns, or room in a queue, and return False. The second result is how long the wait for room in
        a queue took (ms)."""
        for topic, member in zip(topics, members, strict=True):
            with _about(topic.name):
                if not await self._commits.settled(topic):
                    return False, 0.0
                writer = self._commits.check_writable(topic)
                self._commits.check_space(writer)
                if self._commits.is_full(topic):
                    return False, await self._appends.admit(topic, waited, disable_backpressure=False)
                if waits_for_pending(topic):
                    await self._commits.wait_for(topic.next_change())  # as for an append
                    return False, 0.0
                if topic.log.stored.last_seq and not await self._appends.is_loaded(topic, member.batch):
                    return False, 0.0
        return True, 0.0

    async def _encoded_ahead(self, topics: Sequence[Topic], members: Sequence[_Member]) -> list[LargeBatch]:
        """Encode the appends of a large transaction for the seqs that come next, each piece in a turn of its own. Sets
        a barrier on each topic meanwhile; the caller has just found that none has one. Returns in a turn."""
        for topic in topics:
            topic.barrier = trio.Event()
        try:
            now_ms = self._registry.now_ms()
            ahead = [
                LargeBatch(topic, member.batch, now_ms, in_transaction=True)
                for topic, member in zip(topics, members, strict=True)
            ]
            for one in ahead:
                while not one.is_ready:
                    await self._turns.take()
                    one.encode_piece()
            await self._turns.take()
        finally:
            for topic in topics:
                topic.lift_barrier()
        return ahead

    def _check_room(self, topics: Sequence[Topic], members: Sequence[_Member], key: str | None) -> None:
        """Check the quota for all appends together, the caps of each topic, and the room for the key. Raises 422, 400,
        429."""
        if self._settings.max_total_bytes:
            self._appends.check_quota(sum(sum(member.batch.sizes) for member in members))
        for topic, member in zip(topics, members, strict=True):
            if topic.config.discard == "reject":
                with _about(topic.name):
                    self._appends.check_caps(topic, len(member.batch.sizes), sum(member.batch.sizes))
        if key is not None:
            self._keys.check_room()

    # -- the commit --------------------------------------------------------------------------------------------------

    def _send(
        self,
        topics: Sequence[Topic],
        members: Sequence[_Member],
        key: str | None,
        ahead: Sequence[LargeBatch] | None = None,
    ) -> Transaction:
        """Assign seqs and times, build frames and blocks of all appends, queue them: one step of the loop. `ahead`: the
        appends, encoded for these seqs."""
        at = self._registry.windows.now_ms()
        seqs = [
            MemberSeqs(topic.name, topic.assigned + 1, topic.assigned + len(member.batch.sizes))
            for topic, member in zip(topics, members, strict=True)
        ]
        places = [[topic.id, one.first_seq, one.last_seq] for topic, one in zip(topics, seqs, strict=True)]
        commits = []
        for i, (topic, member) in enumerate(zip(topics, members, strict=True)):
            payload: dict[str, object] = {"members": places}
            if key is not None and not i:
                payload |= {"key": key, "at": at, "answer": [list(one) for one in seqs]}
            large = ahead[i] if ahead is not None else None
            commits.append(self._members.append(topic, member.batch, member.request.conditions, payload, large))
        if key is not None:
            self._remember_at_publication(commits[0], key, seqs, at)
        transaction = Transaction(commits, self._commits, self._registry.now_ms)
        transaction.send()
        return transaction

    def _remember_at_publication(self, commit: MemberCommit, key: str, members: Sequence[MemberSeqs], at: int) -> None:
        """Make repeats of the transaction wait for its end, and remember its key when it is published."""
        topic, publish = commit.topic, commit.apply
        place = topic.id, key
        self._in_flight[place] = commit.done
        self._keys.count += len(members)

        def apply(commit: Commit) -> None:
            publish(commit)
            del self._in_flight[place]
            if topic.transactions is None:
                topic.transactions = TransactionKeys()
            before = topic.transactions.members
            topic.transactions.remember(key, members, at)
            self._keys.count += topic.transactions.members - before - len(members)
            self._registry.remembering.add(topic)

        def forget() -> None:
            del self._in_flight[place]
            self._keys.count -= len(members)

        undo = commit.undo

        def undone(commit: Commit) -> None:
            undo(commit)
            forget()

        commit.apply, commit.undo, commit.on_fail = apply, undone, forget


def _future(member: _Member) -> TopicConfig:
    """Return the config that a topic gets if it is made for an append."""
    return member.config or resolve_config(None, TopicConfigPatch(), topic=member.name)


def _check_class(name: str, durability: Durability) -> None:
    """Refuse a topic whose class does not keep acked records (`ephemeral`, `memory`). Raises `409
    topic_exists_incompatible`."""
    if durability in ("ephemeral", "memory"):
        raise ApiError(
            "topic_exists_incompatible",
            f"topic {name!r} has the class {durability}, and a transaction needs disk or fsync",
            detail={"topic": name, "durability": durability},
        )


def _seqs_of(commit: MemberCommit) -> MemberSeqs:
    return MemberSeqs(commit.topic.name, *commit.place)


def _answer(
    members: Sequence[MemberSeqs], created: frozenset[str] | set[str], *, deduped: bool = False
) -> TransactionResult:
    appends = [
        MemberResult(topic=topic, first_seq=first, last_seq=last, count=last - first + 1, created=topic in created)
        for topic, first, last in members
    ]
    return TransactionResult(appends=appends, deduped=deduped)


@contextmanager
def _about(topic: str) -> Iterator[None]:
    """Add the topic to the detail of an `ApiError` that the body raises."""
    try:
        yield
    except ApiError as error:
        raise _with_topic(error, topic) from error


def _with_topic(error: ApiError, topic: str) -> ApiError:
    """Return an error like this one whose detail names a topic."""
    return ApiError(
        error.code,
        error.message,
        detail={**error.detail, "topic": topic},
        retry_after_s=error.retry_after_s,
        headers=error.headers,
    )
