"""Lives of groups, crashed everywhere: what a recovery shows of each topic is a prefix of the order of its events, and
has everything that was promised (`docs/spec/consumers.md` section 4).

A topic is asked for one thing after the other, so its states are a list. Creations and deletions are synced in every
class, acks are as durable as the class says, and for claims and nacks nothing is promised.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from tests.simulation.model import Fate
from tests.simulation.told_states import Entry, StateSweep, TopicClient
from tests.simulation.world import Life
from topics.filters.record_filter import parse_filter
from topics.job_model import ClaimRequest, HeldRequest, NackTerms
from topics.model import ConsumerStart, GroupPatch, Performance, TopicConfigPatch

GROUP_CLASSES: Final = ("memory", "disk", "fsync")
"""Names and classes of the topics. On an `ephemeral` one groups log nothing of what they do."""

LEASE_MS: Final = 3_600_000


class Known(NamedTuple):
    """What is known of a group: the records that it has finished and that are held, and its filter."""

    done: frozenset[int] = frozenset()
    held: frozenset[int] = frozenset()
    filter: str | None = None


class GroupClient(TopicClient):
    """Asks for one thing of the groups of a topic at a time."""

    async def put(self, topic: str, group: str, wanted: str | None = None) -> None:
        """Create a group, or give it a filter or none."""
        state = self.state(topic)
        state[group] = state.get(group, Known())._replace(filter=wanted)
        patch = GroupPatch(
            start=ConsumerStart(place="seq", value=0),
            terms=TopicConfigPatch(lease_ms=LEASE_MS),
            filter=None if wanted is None else parse_filter(wanted),
        )
        await self._ask("put", topic, state, self.life.engine.groups.put(topic, group, patch, Performance()))

    async def claim(self, topic: str, group: str, *seqs: int) -> None:
        """Claim; `seqs` are what comes."""
        state = self.state(topic)
        state[group] = state[group]._replace(held=state[group].held | set(seqs))
        request = ClaimRequest(node="n", most=len(seqs), lease_ms=None, wait_ms=0)
        call = self.life.engine.queues.claim(topic, request, Performance(), group)
        claimed = await self._ask("lease", topic, state, call, promised=False)
        assert [job.seq for job in claimed.jobs] == list(seqs)

    async def ack(self, topic: str, group: str, *seqs: int) -> None:
        state = self.state(topic)
        before = state[group]
        state[group] = before._replace(done=before.done | set(seqs), held=before.held - set(seqs))
        request = HeldRequest(node="n", seqs=list(seqs), lease_ids=None)
        await self._ask("ack", topic, state, self.life.engine.queues.ack(topic, request, Performance(), group))

    async def nack(self, topic: str, group: str, *seqs: int) -> None:
        state = self.state(topic)
        state[group] = state[group]._replace(held=state[group].held - set(seqs))
        request = HeldRequest(node="n", seqs=list(seqs), lease_ids=None)
        call = self.life.engine.queues.nack(topic, request, NackTerms(0), Performance(), group)
        await self._ask("lease", topic, state, call, promised=False)

    async def delete(self, topic: str, group: str) -> None:
        state = self.state(topic)
        del state[group]
        await self._ask("delete", topic, state, self.life.engine.groups.delete(topic, group, Performance()))


def shown(life: Life) -> dict[str, dict[str, Known]]:
    """The groups of every topic."""
    found: dict[str, dict[str, Known]] = {}
    for name, topic in life.engine.registry.topics.items():
        groups = topic.groups.by_name if topic.groups is not None else {}
        live = [seq for seq in range(1, topic.log.head_seq + 1) if topic.log.is_live(seq)]
        found[name] = {}
        for group, queue in groups.items():
            state = queue.state
            state.check()
            assert state.finished.last <= topic.log.head_seq, "beyond the head"
            done = frozenset(seq for seq in live if seq in state.finished)
            held = frozenset(seq for seq in live if state.leases.deliveries(seq) and _is_leased(state, seq))
            found[name][group] = Known(done, held, state.filter)
    return found


def _is_leased(state: Any, seq: int) -> bool:
    page, slot = state.leases._table.at(seq)
    return page.holder(slot) is not None


class GroupSweep(StateSweep[GroupClient]):
    """Topics of every class that keeps something, named by it, with groups."""

    topics = GROUP_CLASSES

    def client(self, life: Life) -> GroupClient:
        return GroupClient(life, self.history)

    def shown(self, life: Life) -> dict[str, dict[str, Known]]:
        return shown(life)

    def is_safe(self, entry: Entry, fate: Fate) -> bool:
        by_class = entry.topic == "fsync" or (entry.topic == "disk" and fate == "kill")
        return by_class or entry.kind in ("put", "delete")
