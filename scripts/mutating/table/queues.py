"""Mutations. Queues and what makes their jobs."""

from __future__ import annotations

from typing import Final

from mutating.mutation import Mutation

QUEUES: Final = (
    Mutation(
        "ack-answered-before-its-sync",
        "queues",
        "topics/engine/queues/lease_commits.py",
        "commit_point = topic.commit_point",
        "commit_point = CommitPoint.HANDED",
        "8.1: an acked fsync ack survives any crash",
        "unit",
    ),
    Mutation(
        "ack-not-logged",
        "queues",
        "topics/engine/queues/lease_commits.py",
        "data, count = deletion_batch(topic, selector, ts, moved)",
        'data, count = b"", 0',
        "8.2: a job whose ack was synced does not come back",
        "life",
    ),
    Mutation(
        "lease-id-not-checked",
        "queues",
        "topics/queue/leases.py",
        "and (lease_id is None or page.lease_ids[slot] == lease_id)",
        "and lease_id != -1",
        "8.9: an ack never removes a job that its caller does not hold",
        "unit",
    ),
    Mutation(
        "holder-not-checked",
        "queues",
        "topics/queue/leases.py",
        "and (node is None or holder == node)",
        "and holder",
        "8.9: an ack never removes a job that its caller does not hold",
        "unit",
    ),
    Mutation(
        "two-holders",
        "queues",
        "topics/queue/leases.py",
        """
            self._reserve(seqs)
            self._reserve(exhausted)
        """,
        """
            pass
            self._reserve(exhausted)
        """,
        "8.9: a job never has two holders",
        "unit",
    ),
    Mutation(
        "durable-lease-not-waited-for",
        "queues",
        "topics/engine/queues/lease_commits.py",
        "commit_point = CommitPoint.SYNCED if topic.config.leases_durable and data else CommitPoint.HANDED",
        "commit_point = CommitPoint.HANDED",
        "8.9: with leases_durable no crash makes a second holder",
        "unit",
    ),
    Mutation(
        "leases-not-restored",
        "queues",
        "topics/storage/recovery/topic_replay.py",
        "topic.queue.apply(event_from_wire(payload, self._clock.started))",
        "pass",
        "8.9: with leases_durable no restart makes a second holder",
        "life",
    ),
    Mutation(
        "consumer-not-restored",
        "queues",
        "topics/storage/recovery/topic_replay.py",
        "consumer = topic.consumers.apply(event)",
        "consumer = topic.consumers.find(event.consumer)",
        "8.1: what a consumer has committed survives a kill",
        "unit",
    ),
    Mutation(
        "generations-forgotten-with-the-last-consumer",
        "queues",
        "topics/storage/recovery/topic_replay.py",
        "if topic.consumers is None:  # none is left in one that is empty, but it knows their generations",
        "if not topic.consumers:",
        "semantics 8: an old owner of a consumer is fenced",
        "unit",
    ),
    Mutation(
        "filter-of-a-consumer-not-changed",
        "queues",
        "topics/consumers/consumers.py",
        "consumer.ttl_ms, consumer.filter = event.ttl_ms, event.filter",
        "consumer.ttl_ms, consumer.filter = event.ttl_ms, consumer.filter or event.filter",
        "8.1: the filter of a consumer that was answered is what a recovery shows",
        "unit",
    ),
    Mutation(
        "commit-of-a-consumer-acked-early",
        "queues",
        "topics/engine/consumers/consumer_commits.py",
        "point = CommitPoint.SYNCED if synced or topic.ephemeral else topic.commit_point",
        "point = CommitPoint.SYNCED if synced or topic.ephemeral else CommitPoint.HANDED",
        "consumers 3: a commit is as durable as the class of the topic",
        "unit",
    ),
    Mutation(
        "owner-of-a-consumer-not-synced",
        "queues",
        "topics/engine/consumers/consumer_calls.py",
        """
            await self._commit(topic, event, perf, synced=True)
            return topic.id, event.generation, self._registry.to_wall(event.deadline)
        """,
        """
            await self._commit(topic, event, perf)
            return topic.id, event.generation, self._registry.to_wall(event.deadline)
        """,
        "consumers 3: acquire is synced before its answer whatever the class",
        "unit",
    ),
    Mutation(
        "consumed-before-all-have-passed",
        "queues",
        "topics/consumers/consumers.py",
        "return min((consumer.seq for consumer in self), default=None)",
        "return max((consumer.seq for consumer in self), default=None)",
        "consumers 3: what is deleted as consumed every consumer has passed",
        "unit",
    ),
    Mutation(
        "consumed-beside-a-seek-on-its-way",
        "queues",
        "topics/engine/consumers/consumed.py",
        "on_their_way = [one.seq for one in (topic.consumer_commits or {}).values()]",
        "on_their_way: list[int] = []",
        "consumers 3: what is deleted as consumed every consumer has passed",
        "unit",
    ),
    Mutation(
        "consumed-before-routers-have-passed",
        "queues",
        "topics/engine/consumers/consumed.py",
        "return min([lowest, *on_their_way, *passed.values()])",
        "return min([lowest, *on_their_way])",
        "consumers 3: what is deleted as consumed every router has passed",
        "unit",
    ),
    Mutation(
        "consumed-before-copies-are-synced",
        "queues",
        "topics/engine/consumers/consumed.py",
        """
            if passed:
                await self._commits.sync_all()
        """,
        """
            if not passed:
                await self._commits.sync_all()
        """,
        "consumers 3: what is deleted as consumed every router has passed, also after a crash",
        "unit",
    ),
    Mutation(
        "consumed-with-another-retention",
        "queues",
        "topics/engine/consumers/consumed.py",
        'if topic.config.retention != "consumed":',
        "if False:",
        "consumers 3: only with retention consumed is what is consumed deleted",
        "unit",
    ),
    Mutation(
        "consumer-decided-beside-an-event-on-its-way",
        "queues",
        "topics/engine/consumers/consumer_commits.py",
        "            if on_the_way is None:",
        "            if True:",
        "semantics 8: two owners of a consumer never both commit",
        "unit",
    ),
    Mutation(
        "consumer-moved-by-an-old-generation",
        "queues",
        "topics/consumers/consumers.py",
        "if generation == consumer.generation or (generation is None and consumer.owner is None):",
        "if generation is not None or consumer.owner is None:",
        "semantics 8: an old owner of a consumer is fenced",
        "unit",
    ),
    Mutation(
        "dead-letter-deleted-before-its-copy-is-synced",
        "queues",
        "topics/engine/queues/dead_letters.py",
        """
            await self._sync(config.dead_letter)
            await self._delete(topic, queue, moved)
        """,
        """
            await self._delete(topic, queue, moved)
            await self._sync(config.dead_letter)
        """,
        "semantics 6: a crash leaves the job, its dead letter or both, never neither",
        "crash",
    ),
    Mutation(
        "nack-delay-ignored",
        "queues",
        "topics/queue/leases.py",
        "available_at = now.after(delay_ms) if delay_ms else None",
        "available_at = None",
        "semantics 6: a delayed job is not claimed before its time",
        "unit",
    ),
    Mutation(
        "two-jobs-of-a-key-are-leased",
        "queues",
        "topics/queue/key_order.py",
        "        return self._first(key) == seq\n",
        "        return True\n",
        "consumers 4: of the records with one key one is leased at a time",
        "unit",
    ),
    Mutation(
        "another-order-passes-over-leases",
        "queues",
        "topics/queue/leases.py",
        "self.order = None if by is None else KeyOrder(by, {*self._table.seqs_in(LEASED), *self._reserved})",
        "self.order = None if by is None else KeyOrder(by, ())",
        "consumers 4: of the records with one key one is leased at a time",
        "unit",
    ),
    Mutation(
        "a-key-stays-held-up-by-a-deleted-job",
        "queues",
        "topics/queue/job_projection.py",
        "            self.order.ended(seqs)\n",
        "            pass\n",
        "consumers 4: a poisoned key holds up only itself",
        "unit",
    ),
    Mutation(
        "one-poisoned-job-holds-up-all",
        "queues",
        "topics/engine/queues/dead_letters.py",
        "elif len(failed) < SINGLES or moved:",
        "elif len(failed) < 0:",
        "8.7: one poisoned job holds up nobody else",
        "life",
    ),
)
