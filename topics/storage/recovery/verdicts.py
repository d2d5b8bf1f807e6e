"""The decisions of recovery that the log does not have yet, and making the end of the log durable
(`docs/spec/crash.md` 2, 3 and 16)."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from topics.evidence.topic_tree import TreeIdentity
from topics.log.stages import StageTarget
from topics.model import SYNCED_CLASSES
from topics.storage.files.fs import TEMPORARY_SUFFIX, File, Fs, copy_bytes, parent
from topics.storage.recovery.recovered_state import (
    ColumnLoader,
    LostRun,
    RecoveredShard,
    RecoveredState,
    RecoveredTopic,
    TransactionDecision,
    shard_of,
)
from topics.storage.recovery.restored_copy import SKIPPED_SEQS
from topics.storage.wal.frame_search import FrameSearch, LogFile
from topics.storage.wal.wal_files import LogPosition


class Verdict(NamedTuple):
    """The decisions of recovery about one topic that the log does not have yet."""

    topic_id: int
    hole: tuple[int, int] | None
    """First and last seq at the head that may have been shown to readers and are lost; None if there are none."""
    ceiling: int
    """The topic's new ceiling."""
    copies: Sequence[LostRun] = ()
    """Copies that are lost, and records that are damaged."""
    decisions: Sequence[TransactionDecision] = ()
    """The decisions about transactions that were in doubt, in the order of their seqs."""
    tree: TreeIdentity | None = None
    """Its Merkle tree from now on; None if that does not change."""
    dropped: str | None = None
    """The name of the stage if the verdict drops a stage, else None. With a name, the other fields have no meaning."""


def decide(
    recovered: RecoveredState,
    *,
    boot_id: str,
    identity: str,
    failed: Callable[[int], bool],
    shards: int,
    restored: bool = False,
    taken_over: bool = False,
) -> dict[int, list[Verdict]]:
    """Return the verdicts by shard, applied to the topics in memory already. They must be logged and synced before any
    request is served. `restored`: the directory is a copy, and this is its first start. `taken_over`: it is what a
    bucket had of its owner, which may have given out seqs up to the bucket ceilings since."""
    verdicts: dict[int, list[Verdict]] = {}
    by_number = {shard.shard: shard for shard in recovered.shards}
    noted = {number for number in range(shards) if failed(number)}
    for topic in recovered.topics.values():
        number = shard_of(topic.id, shards)
        shard = by_number.get(number)
        stayed_up = (
            shard is not None
            and shard.boot_id == boot_id
            and shard.identity == identity
            and number not in recovered.failed
            and number not in noted
            and not taken_over
            # Salvage has given up bytes that may have held seqs that were shown to readers.
            and (not shard.fillers or topic.stage is not None)
        )
        if taken_over and topic.stage is None:
            topic.forwarded_to = max(topic.forwarded_to, topic.bucket_ceiling)
        verdict = _decide_topic(topic, recovered.columns, stayed_up=stayed_up, skipped=SKIPPED_SEQS if restored else 0)
        lost = recovered.missing.get(topic.id)
        if lost:
            verdict = (verdict or Verdict(topic.id, None, topic.ceiling))._replace(copies=lost)
        if verdict is not None:
            verdicts.setdefault(number, []).append(verdict)
    return verdicts


def drop_stages(recovered: RecoveredState, verdicts: dict[int, list[Verdict]], shards: int) -> None:
    """Drop the stages that cannot continue, and add that to the verdicts. Must be called when everything else is
    decided: a stage that the next start would drop must not take more records."""
    for stage in _stages_gone(recovered):
        del recovered.topics[stage.id]
        others = verdicts.setdefault(shard_of(stage.id, shards), [])
        others[:] = [verdict for verdict in others if verdict.topic_id != stage.id]
        others.append(Verdict(stage.id, None, 0, dropped=stage.name))


def drop_orphans(recovered: RecoveredState) -> None:
    """Drop the stages whose target was deleted, as the owner of the log has done with the target (a standby)."""
    for topic in list(recovered.topics.values()):
        if topic.stage is not None and topic.stage.target_id not in recovered.topics:
            del recovered.topics[topic.id]


def _stages_gone(recovered: RecoveredState) -> list[RecoveredTopic]:
    """Return the stages that cannot continue (`docs/spec/crash.md` 23). The target of such a stage was deleted; or the
    stage was committed and its deletion has not reached the disk; or some of its records are or may be lost, so that no
    commit may publish the rest."""
    gone: list[RecoveredTopic] = []
    newest: dict[StageTarget, RecoveredTopic] = {}
    for topic in recovered.topics.values():
        of = topic.stage
        if of is None:
            continue
        target = recovered.topics.get(of.target_id)
        closed = target is not None and target.commit_keys is not None and target.commit_keys.has_closed(of.name)
        if target is None or closed or topic.log.count != topic.log.head_seq:
            gone.append(topic)
            continue
        other = newest.setdefault(of, topic)
        if other is not topic:
            older, newest[of] = sorted((other, topic), key=lambda stage: stage.id)
            gone.append(older)
    return gone


def note_damage(recovered: RecoveredState, verdicts: dict[int, list[Verdict]], shards: int) -> None:
    """Add the records that were found damaged to the verdicts, so that a later deletion does not hide the damage from
    the next start."""
    for topic_id, ranges in recovered.columns.damaged.items():
        topic = recovered.topics.get(topic_id)
        if topic is None or topic.config.durability == "ephemeral":
            continue
        lost = [LostRun(first, last, "corrupt") for first, last in ranges]
        others = verdicts.setdefault(shard_of(topic_id, shards), [])
        i = _place_of(others, topic)
        others[i] = others[i]._replace(copies=[*others[i].copies, *lost])


def note_decisions(recovered: RecoveredState, verdicts: dict[int, list[Verdict]], shards: int) -> None:
    """Add the transactions that were in doubt to the verdicts: no later recovery may decide otherwise
    (`docs/design/transactions.md` section 3)."""
    for decision in sorted(recovered.decisions):
        topic = recovered.topics.get(decision.topic_id)
        if topic is not None:
            others = verdicts.setdefault(shard_of(topic.id, shards), [])
            i = _place_of(others, topic)
            others[i] = others[i]._replace(decisions=[*others[i].decisions, decision])


def renew_trees(
    recovered: RecoveredState,
    verdicts: dict[int, list[Verdict]],
    shards: int,
    *,
    every: bool,
    new_id: Callable[[], str],
    key: Callable[[], str | None],
) -> int:
    """Give a new uuid to each Merkle tree of which leaves may have been lost since it got its present one. In a copy
    that is `every` tree, else those of topics in whose shard salvage has given up a range. Add that to the verdicts.
    Return how many there are. `key` returns the hash of the present key, None if that cannot be read."""
    given_up: dict[int, LogPosition] = {}
    for shard in recovered.shards:
        for filler in shard.fillers:
            place = LogPosition(filler.ordinal, filler.start)
            given_up[shard.shard] = max(place, given_up.get(shard.shard, place))
    renewed = 0
    for topic in recovered.topics.values():
        number = shard_of(topic.id, shards)
        if topic.tree is None or not (every or given_up.get(number, LogPosition(-1, 0)) >= topic.proved_from):
            continue
        topic.tree.renewed(new_id(), key() or topic.tree.identity.key)
        topic.part = None
        others = verdicts.setdefault(number, [])
        i = _place_of(others, topic)
        others[i] = others[i]._replace(tree=topic.tree.identity)
        renewed += 1
    return renewed


def _place_of(verdicts: list[Verdict], topic: RecoveredTopic) -> int:
    """Return the index of the verdict about a topic, added if there is none."""
    for i, verdict in enumerate(verdicts):
        if verdict.topic_id == topic.id:
            return i
    verdicts.append(Verdict(topic.id, None, topic.ceiling))
    return len(verdicts) - 1


def settle_queues(recovered: RecoveredState) -> None:
    """Forget the jobs whose records no longer exist. Called when the live records are known."""
    for topic in recovered.topics.values():
        if topic.queue is not None:
            topic.queue.gone_below(topic.log.earliest_seq)
            if topic.config.durability == "ephemeral":
                topic.queue.results.forget(list(topic.queue.results))  # it does not log which were delivered
            recovered.columns.run(topic, partial(topic.queue.reconcile, topic.log.index.only_live))
        for group in topic.groups.values():
            if topic.config.durability == "ephemeral":
                group.begin_at(topic.log.head_seq)  # its records are gone, and it logs nothing that it does
            else:
                group.settle(topic.log, partial(recovered.columns.run, topic))


def _decide_topic(topic: RecoveredTopic, columns: ColumnLoader, *, stayed_up: bool, skipped: int) -> Verdict | None:
    """Decide about one topic. `skipped` is how many seqs to skip above the highest one that the directory knows."""
    durability = topic.config.durability
    head, ceiling = topic.log.head_seq, topic.ceiling
    reached = topic.forwarded_to
    if skipped:
        reached = max(head, ceiling, reached) + skipped
    if durability in SYNCED_CLASSES and reached <= head:
        topic.ceiling = head  # this class reserves no seqs, so its part stays valid
        return None
    exempt = durability == "disk" and stayed_up and reached <= head
    ceiling = max(reached, 0 if durability in SYNCED_CLASSES else ceiling)
    hole = None
    if ceiling > head and not exempt:
        columns.add_hole(topic, head + 1, ceiling, "lost")
        topic.part = None
        hole = (head + 1, ceiling)
    topic.ceiling = topic.log.head_seq
    if durability == "ephemeral":
        if topic.log.count or topic.keys is not None:
            topic.part = None
        columns.run(topic, partial(topic.log.lose_all, "lost"))
        topic.keys = None
    if hole is None and ceiling == topic.log.head_seq:
        return None
    topic.part = None
    return Verdict(topic.id, hole, topic.ceiling)


def secure_end(fs: Fs, shard: RecoveredShard, *, boot_id: str) -> None:
    """Cut the shard's last file behind its last whole batch and make everything before that durable. Blocking.

    After a failed sync the page cache may show bytes that the disk does not hold. So if the machine has not rebooted
    since the file was written, the file is written again, under another name, to keep its synced bytes safe. This also
    removes the torn end. After a reboot, reads show the bytes that the disk holds. Behind a clean stop only marks can
    be unsynced, and they may be written in place. If a valid frame is among the cut bytes, they are stored in a
    separate file, for an operator who looks for lost writes.
    """
    if shard.file is None:
        return
    path = shard.file.path
    with fs.open(path) as handle:
        size = handle.size()
        if shard.truncated is not None and _may_hold_frames(handle, shard, size):
            _keep_aside(fs, handle, shard, size)
        if shard.truncated is not None or (shard.boot_id == boot_id and not shard.clean):
            _write_again(fs, handle, path, shard.end, length=shard.end if shard.ended else size)
            return
        if shard.boot_id == boot_id:
            at = min(shard.vouched.offset if shard.vouched.ordinal == shard.file.ordinal else 0, shard.end)
            _copy(handle, at, shard.end, handle, at)
        handle.fdatasync()


def _may_hold_frames(handle: File, shard: RecoveredShard, size: int) -> bool:
    """Return True if a valid frame is among the bytes that are cut, or if that is unknown."""
    assert shard.file is not None
    search = FrameSearch(LogFile(handle, size, shard.file.ordinal, shard.file.head.salt), shard.end)
    return next(search.found(), None) is not None or search.exhausted


def _write_again(fs: Fs, handle: File, path: str, end: int, *, length: int) -> None:
    """Replace a file atomically by a copy of its first `end` bytes, with zeros up to `length`."""
    with fs.open(path + TEMPORARY_SUFFIX, create=True) as copy:
        copy.truncate(0)
        copy.preallocate(length)
        _copy(handle, 0, end, copy, 0)
        copy.fdatasync()
    fs.rename(path + TEMPORARY_SUFFIX, path)
    fs.sync_dir(parent(path))


def _copy(source: File, start: int, end: int, target: File, offset: int) -> None:
    """Copy bytes of a file of the log. Raises OSError also if the file has become shorter than it was."""
    copied = copy_bytes(source, start, end, target, offset)
    if copied < end - start:
        raise OSError(errno.EIO, f"a file of the log ends at {start + copied}, and {end} bytes of it were read before")


def _keep_aside(fs: Fs, handle: File, shard: RecoveredShard, size: int) -> None:
    """Copy the bytes that are cut to the separate file `PATH.OFFSET.cut`."""
    assert shard.file is not None
    with fs.open(f"{shard.file.path}.{shard.end}.cut", create=True) as aside:
        _copy(handle, shard.end, size, aside, 0)
        aside.fdatasync()
