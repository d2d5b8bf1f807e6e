"""Moves dead letters out of their topic, each exactly once (`docs/design/redrive.md`).

`LetterMoves.move` moves letters that are given by their seqs; the redrive of a topic calls it for one piece after
another, and so may any other call that wants letters moved. It sorts them by their destinations. Each part goes in one
transaction of two members: the deletion of the letters, and the append to a queue or the event by which a group gets
its records again. Between the last check of a part and its transaction there is no await. Only one call moves letters
of a topic at a time; others wait. A letter that cannot be moved stays, and the answer says why.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, Literal, NamedTuple

import trio

from topics.engine.commits import Commits
from topics.engine.group_queue import GroupQueue
from topics.engine.loader import Loader
from topics.engine.operations.append import Appends, waits_for_pending
from topics.engine.operations.member_commits import MemberCommits
from topics.engine.queues.lease_commits import LeaseCommits
from topics.engine.record_columns import COMMIT_TURN_BYTES, AppendColumns
from topics.engine.redrives.letters import Letter, letter_of
from topics.engine.registry import Registry
from topics.engine.topic import Topic
from topics.engine.transaction import MemberCommit, Transaction
from topics.errors import ApiError, topic_not_found
from topics.log.block import Block, block_with
from topics.log.retention import has_room
from topics.log.span import NotLoaded
from topics.queue.lease_events import ReopenEvent
from topics.runtime.turns import Turns
from topics.storage.wal.members import tokens

PIECE_LETTERS: Final = 100
PIECE_BYTES: Final = 1 << 20
"""Bounds of the letters of one transaction."""

Reason = Literal["no_origin", "missing", "forbidden", "incompatible", "full", "gone", "in_flight"]
"""Why a letter stays. `no_origin`: it does not say where it came from. `missing`: its queue or group is not there.
`forbidden`: the caller may not write there. `incompatible`: transactions do not support the class of that topic.
`full`: no room there. `gone`: the group's record is not there any more. `in_flight`: somebody holds the letter
itself, or the group has not finished the move of the record to the dead letters."""


class MovedLetters(NamedTuple):
    """The outcome of a call. Letters that are in neither were no records of the topic any more."""

    moved: list[int]
    left: dict[int, Reason]


class _Target(NamedTuple):
    """Where a part of the letters goes to."""

    topic: str
    group: str | None
    is_origin: bool = True
    """False if the caller has named the topic: then it may be a log."""


class _JudgedLetters(NamedTuple):
    """Letters that can go to their target now: which, and how."""

    letters: list[Letter]
    left: dict[int, Reason]
    place: tuple[int, int]
    """The name of the target's member, for which a token stands if it is 0."""
    commit: Callable[[dict[str, object], int], MemberCommit]


class LetterMoves:
    """Moves letters. Made once by the engine."""

    def __init__(
        self,
        registry: Registry,
        *,
        commits: Commits,
        lease_commits: LeaseCommits,
        members: MemberCommits,
        appends: Appends,
        loader: Loader,
        turns: Turns,
    ) -> None:
        self._registry = registry
        self._commits = commits
        self._lease_commits = lease_commits
        self._members = members
        self._appends = appends
        self._loader = loader
        self._turns = turns
        self._busy: dict[Topic, trio.Event] = {}
        """The end of the call that moves letters of a topic."""
        self._tokens = tokens()

    async def move(
        self, topic: Topic, seqs: Sequence[int], *, to: str | None = None, may: Callable[[str], bool]
    ) -> MovedLetters:
        """Move the letters `seqs` (ascending) of a topic to where they came from, or append them to the topic `to`;
        returns when they are synced and visible there. `may` tells whether the caller may write to a topic.

        Raises `404 topic_not_found` if the letters' topic is deleted, `409 topic_exists_incompatible` for its class,
        and 503; letters that were moved until then stay moved. Cancelling before a part is queued leaves its letters;
        after that the part is moved all the same.
        """
        while topic in self._busy:
            await self._busy[topic].wait()
        done = self._busy[topic] = trio.Event()
        moved: list[int] = []
        left: dict[int, Reason] = {}
        try:
            at = 0
            while at < len(seqs):
                letters, looked = await self._letters(topic, seqs[at : at + PIECE_LETTERS])
                at += looked
                for target, part in self._sorted(topic, letters, to, may, left).items():
                    await self._transfer(topic, target, part, moved, left)
        finally:
            del self._busy[topic]
            done.set()
        return MovedLetters(moved, left)

    async def wait_for(self, ended: trio.Event) -> None:
        """Wait, for a client, for the end of moves. Raises `503 read_only` if they wait for room on the disk."""
        await self._commits.wait_for(ended)

    async def _letters(self, topic: Topic, seqs: Sequence[int]) -> tuple[list[Letter], int]:
        """Return the letters with the first of these seqs, as many as fit into a piece, and how many seqs that are.
        Those that are gone are left out."""
        letters: list[Letter] = []
        loaded: list[Block] = []
        size = 0
        for i, seq in enumerate(seqs):
            while ts := await self._loader.prepared(topic, partial(_time_of, topic, seq)):
                if topic.deleted:
                    raise topic_not_found(topic.name)
                block = topic.blocks.find(seq) or block_with(loaded, seq)
                if block is not None:
                    letter = letter_of(seq, ts, block.parts_of(seq))
                    size += letter.size
                    if size > PIECE_BYTES and letters:
                        return letters, i
                    letters.append(letter)
                    break
                loaded = await self._loader.load(topic, seq, seq)
        return letters, len(seqs)

    def _sorted(
        self,
        topic: Topic,
        letters: Iterable[Letter],
        to: str | None,
        may: Callable[[str], bool],
        left: dict[int, Reason],
    ) -> dict[_Target, list[Letter]]:
        """Return the letters by where they go to; note in `left` those that go nowhere."""
        parts: dict[_Target, list[Letter]] = {}
        for letter in letters:
            origin = letter.origin
            if to is not None:
                target = _Target(to, None, is_origin=False)
            elif origin is None:
                left[letter.seq] = "no_origin"
                continue
            else:
                target = _Target(origin.topic, origin.group)
            if target.topic == topic.name:
                left[letter.seq] = "missing"
            elif not may(target.topic):
                left[letter.seq] = "forbidden"
            else:
                parts.setdefault(target, []).append(letter)
        return parts

    async def _transfer(
        self,
        topic: Topic,
        target: _Target,
        letters: Sequence[Letter],
        moved: list[int],
        left: dict[int, Reason],
    ) -> None:
        """Move letters that go to the same target, in one transaction; note in `moved` and `left` what becomes of
        them."""
        cost = sum(letter.size for letter in letters)
        has_turn = cost < COMMIT_TURN_BYTES
        there = partial(_there, topic, letters)
        while True:
            if not await self._is_ready(topic):
                continue
            check_class(topic)
            try:
                here = there()
            except NotLoaded:
                await self._loader.prepared(topic, there)
                continue
            free = [letter for letter in here if not _is_held(topic, letter.seq)]
            part = await self._part(target, free)
            if part is None:
                has_turn = cost < COMMIT_TURN_BYTES
            elif has_turn:
                break
            else:
                await self._turns.take(cost)
                has_turn = True
        left.update(part.left)
        left.update({letter.seq: "in_flight" for letter in here if letter not in free})
        if part.letters:
            seqs = array("Q", [letter.seq for letter in part.letters])
            await self._send(topic, seqs, part, self._registry.topics[target.topic]).ended()
            moved.extend(seqs)

    def _send(self, topic: Topic, seqs: array[int], part: _JudgedLetters, target: Topic) -> Transaction:
        """Queue the transaction: one step of the loop."""
        token = next(self._tokens)
        place = part.place if part.place[0] else (token, token)
        payload: dict[str, object] = {"members": [[topic.id, token, token], [target.id, *place]]}
        commits = [self._members.deletion(topic, seqs, payload, token), part.commit(payload, token)]
        transaction = Transaction(commits, self._commits, self._registry.now_ms)
        transaction.send()
        return transaction

    # -- admission ---------------------------------------------------------------------------------------------------

    async def _is_ready(self, topic: Topic) -> bool:
        """Return True if a change of the topic can be decided now; then there was no await before the return. Otherwise
        wait for the work that is in the way, and return False. Raises 404 and 503."""
        if topic.deleted:
            raise topic_not_found(topic.name)
        if not await self._commits.settled(topic):
            return False
        writer = self._commits.check_writable(topic)
        self._commits.check_space(writer)
        if self._commits.is_full(topic):
            await self._commits.admit(topic, None)
        elif topic.working is not None:
            await topic.working.wait()
        else:
            try:
                self._registry.expire(topic)
                return True
            except NotLoaded:
                await self._loader.expire(topic)
        return False

    async def _part(self, to: _Target, letters: list[Letter]) -> _JudgedLetters | None:
        """Judge which letters the target takes. None if it had to wait: then the caller starts over. Otherwise there
        was no await before the return."""
        target = self._registry.topics.get(to.topic)
        if target is None:
            return _nothing(letters, "missing")
        if target.config.durability in ("ephemeral", "memory"):
            return _nothing(letters, "incompatible")
        if not letters:
            return _nothing(letters, "gone")
        if to.group is None and to.is_origin and target.queue is None:
            return _nothing(letters, "missing")
        try:
            if not await self._is_ready(target):
                return None
        except ApiError as error:
            if error.code == "topic_not_found":
                return None
            raise
        if to.group is None and not to.is_origin:
            return await self._to_topic(target, letters)
        if to.group is None:
            return await self._to_queue(target, letters)
        return await self._to_group(target, to.group, letters)

    async def _to_queue(self, target: Topic, letters: list[Letter]) -> _JudgedLetters | None:
        """Judge letters that go back to their queue. While that has not finished the move of a job to the dead letters,
        the letter stays: after a crash the queue would still have the job."""
        assert target.queue is not None
        parked = target.queue.leases.is_parked
        moving = [letter for letter in letters if letter.origin is not None and parked(letter.origin.seq)]
        if len(moving) == len(letters):
            return _nothing(letters, "in_flight")
        judged = await self._to_topic(target, [letter for letter in letters if letter not in moving])
        if judged is not None:
            judged.left.update({letter.seq: "in_flight" for letter in moving})
        return judged

    async def _to_topic(self, target: Topic, letters: list[Letter]) -> _JudgedLetters | None:
        """Judge letters that are to be appended."""
        if waits_for_pending(target):
            await self._commits.wait_for(target.next_change())  # as for an append
            return None
        fits = _fitting(target, letters)
        batch = _columns(fits)
        if fits and target.log.stored.last_seq and not await self._appends.is_loaded(target, batch):
            return None
        left: dict[int, Reason] = {letter.seq: "full" for letter in letters if letter not in fits}
        place = target.assigned + 1, target.assigned + len(fits)

        def commit(payload: dict[str, object], _token: int) -> MemberCommit:
            return self._members.append(target, batch, None, payload)

        return _JudgedLetters(fits, left, place, commit)

    async def _to_group(self, target: Topic, group: str, letters: list[Letter]) -> _JudgedLetters | None:
        """Judge letters whose records a group is to have again."""
        queue = target.groups.by_name.get(group) if target.groups is not None else None
        if queue is None or queue.deleted:
            return _nothing(letters, "missing")
        try:
            if not await self._lease_commits.settle(target, queue):
                return None
        except ApiError as error:
            if error.code in ("topic_not_found", "group_not_found"):
                return None
            raise
        named = partial(_records_of, target, letters)
        try:
            live = named()
        except NotLoaded:
            await self._loader.prepared(target, named)
            return None
        left: dict[int, Reason] = {}
        fits: list[Letter] = []
        room = queue.state.room
        for letter in letters:
            assert letter.origin is not None
            seq = letter.origin.seq
            is_finished = queue.state.is_finished(seq)
            if letter.seq not in live:
                left[letter.seq] = "gone"
            elif queue.leases.is_parked(seq):
                # Its dead-letter move has not ended: that would finish the record after its letter is gone.
                left[letter.seq] = "in_flight"
            elif is_finished and room < queue.state.cost_of_reopening(seq):
                left[letter.seq] = "full"
            else:
                room -= queue.state.cost_of_reopening(seq) if is_finished else 0
                fits.append(letter)
        return _JudgedLetters(fits, left, (0, 0), partial(self._reopening, target, queue, fits))

    def _reopening(
        self, target: Topic, queue: GroupQueue, letters: Sequence[Letter], payload: dict[str, object], token: int
    ) -> MemberCommit:
        seqs = sorted({letter.origin.seq for letter in letters if letter.origin is not None})
        group = queue.state
        front = 0 if queue.is_behind else target.log.earliest_seq
        event = ReopenEvent(array("Q", seqs), group.finished.floor, group.missed, front)
        return self._members.reopening(target, queue, event, payload, token)


def check_class(topic: Topic) -> None:
    """Refuse letters in a topic of a class that transactions do not support. Raises `409
    topic_exists_incompatible`."""
    durability = topic.config.durability
    if durability in ("ephemeral", "memory"):
        raise ApiError(
            "topic_exists_incompatible",
            f"topic {topic.name!r} has the class {durability}, and a redrive needs disk or fsync",
            detail={"topic": topic.name, "durability": durability},
        )


def _nothing(letters: Sequence[Letter], why: Reason) -> _JudgedLetters:
    """Return a part without letters, because none can be moved."""

    def commit(_payload: dict[str, object], _token: int) -> MemberCommit:
        raise AssertionError("there is nothing to be moved")

    return _JudgedLetters([], {letter.seq: why for letter in letters}, (0, 0), commit)


def _there(topic: Topic, letters: Sequence[Letter]) -> list[Letter]:
    """Return the letters that are live and are removed by no commit on its way. Raises NotLoaded."""
    live = _there_among(topic, [letter.seq for letter in letters])
    return [letter for letter in letters if letter.seq in live]


def _there_among(topic: Topic, seqs: Sequence[int]) -> set[int]:
    foreseen = [commit.foreseen for commit in topic.pending or () if commit.foreseen is not None]

    def stays(seq: int) -> bool:
        return not any(seq < one.floor or (one.removes is not None and one.removes(seq)) for one in foreseen)

    return {seq for seq in seqs if seq and topic.log.is_live(seq) and stays(seq)}


def _time_of(topic: Topic, seq: int) -> int:
    """Return the time of a live record; 0 if it is not live. Raises NotLoaded."""
    return topic.log.index.ts_of(seq) if topic.log.is_live(seq) else 0


def _records_of(target: Topic, letters: Sequence[Letter]) -> set[int]:
    """Return the seqs of the letters whose records are there. A record that is younger than its letter is another one:
    it is of a topic that was made again under the name. Raises NotLoaded."""
    seqs = {letter.seq: letter.origin.seq for letter in letters if letter.origin is not None}
    live = _there_among(target, list(seqs.values()))
    return {
        letter.seq for letter in letters if seqs[letter.seq] in live and _time_of(target, seqs[letter.seq]) <= letter.ts
    }


def _is_held(topic: Topic, seq: int) -> bool:
    """Return True if the letter is a job that a worker holds, or that is about to be moved itself."""
    if topic.queue is None:
        return False
    leases = topic.queue.leases
    return leases.is_parked(seq) or leases.is_held(seq)


def _fitting(target: Topic, letters: Sequence[Letter]) -> list[Letter]:
    """Return the letters for which a topic with `discard: reject` has room, each judged by itself. Their bytes leave
    the other topic in the same step, so the quota of the daemon does not count."""
    config = target.config
    if config.discard != "reject" or not (config.cap_records or config.cap_bytes):
        return list(letters)
    fits: list[Letter] = []
    size = 0
    for letter in letters:
        count, total = len(fits) + 1, size + letter.size
        if has_room(target.log, config, target.pending_records, target.pending_bytes, count, total):
            fits.append(letter)
            size = total
    return fits


def _columns(letters: Sequence[Letter]) -> AppendColumns:
    tags = [letter.tag for letter in letters]
    metas = [letter.meta for letter in letters]
    return AppendColumns(
        [letter.data for letter in letters],
        None,
        tags if any(tags) else None,
        metas if any(metas) else None,
        array("I", [letter.size for letter in letters]),
    )
