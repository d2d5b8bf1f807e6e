"""Calls on queues. The rules about leases are in `topics.queue`.

queue_calls     claim, ack, nack, extend, and the `/work` stream
claims          the line of claimers: who gets which jobs, and when
lease_commits   a decision about jobs becomes a commit
dead_letters    jobs that have failed too often
"""
