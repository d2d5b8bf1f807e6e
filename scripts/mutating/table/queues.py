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
        "waits = synced or topic.config.leases_durable",
        "waits = synced",
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
        "if topic.consumers is None:  # empty `Consumers` still know the last generation",
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
        "one-poisoned-job-holds-up-all",
        "queues",
        "topics/engine/queues/dead_letters.py",
        "elif len(failed) < SINGLES or moved:",
        "elif len(failed) < 0:",
        "8.7: one poisoned job holds up nobody else",
        "life",
    ),
    Mutation(
        "job-comes-before-its-time",
        "queues",
        "topics/engine/operations/new_jobs.py",
        "at = at if at > wall_ms else 0",
        "at = 0",
        "consumers 5: a job with a delay is not claimed before its time",
        "unit",
    ),
    Mutation(
        "delay-of-a-failed-job-forgotten",
        "queues",
        "topics/queue/job_table.py",
        "until = page.due_ms[slot] - 1 + delay_ms",
        "until = now_ms",
        "consumers 5: the end of a lease backs off too",
        "unit",
    ),
    Mutation(
        "delivery-counted-although-it-does-not",
        "queues",
        "topics/queue/job_projection.py",
        "if not event.counts:",
        "if False:",
        "consumers 5: a delivery that does not count brings no job to the dead letters",
        "unit",
    ),
    Mutation(
        "error-of-a-job-forgotten",
        "queues",
        "topics/engine/queues/dead_letters.py",
        'fields["$dead_letter_error"] = error',
        'fields.pop("$dead_letter_error", None)',
        "consumers 5: a dead letter has the last error of its job",
        "unit",
    ),
    Mutation(
        "pause-not-synced",
        "queues",
        "topics/engine/queues/lease_commits.py",
        "waits = synced or topic.config.leases_durable",
        "waits = topic.config.leases_durable",
        "consumers 5: a pause that was answered survives a crash",
        "unit",
    ),
    Mutation(
        "pause-forgotten-by-snapshots",
        "queues",
        "topics/queue/job_projection.py",
        'fields["paused_until"] = self.paused_until',
        "pass",
        "consumers 5: a pause survives restarts",
        "unit",
    ),
    Mutation(
        "urgent-job-waits",
        "queues",
        "topics/queue/claim_order.py",
        "return max((lane for lane in lanes if lane.seq), key=lambda lane: (lane.urgency, -lane.seq), default=None)",
        "return max((lane for lane in lanes if lane.seq), key=lambda lane: -lane.seq, default=None)",
        "consumers 5: jobs of higher priorities come first",
        "unit",
    ),
    Mutation(
        "claims-in-flight-beyond-the-limit",
        "queues",
        "topics/queue/claim_limits.py",
        "return max(room - dealt, 0)",
        "return max(room, 0)",
        "consumers 5: no more jobs are in flight than max_in_flight",
        "unit",
    ),
    Mutation(
        "rate-counted-from-the-decision",
        "queues",
        "topics/engine/queues/lease_commits.py",
        "queue.limits.window.note(self.now().mono, len(done))",
        "queue.limits.window.note(queue.now.mono, len(done))",
        "consumers 5: no per_ms has more claims than the rate",
        "unit",
    ),
    Mutation(
        "rate-free-after-a-start",
        "queues",
        "topics/engine/job_queue.py",
        "limits.window.note(self.now.mono, rate.jobs)",
        "pass",
        "consumers 5: after a start the rate counts as used up",
        "unit",
    ),
)
