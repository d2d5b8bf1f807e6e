"""Calls on queues. The rules about leases are in `topics.queue`.

queue_calls     claim, ack, nack, extend, and the `/work` stream
claims          the line of claimers: which claimer gets which jobs, and when
job_scan        goes through jobs by their states and a filter
job_lists       shows pages of jobs, and of dead letters
job_changes     retries and cancels jobs
looks           asks the filter of a group about records
key_looks       tells the order of a queue the keys of its records
lease_commits   turns decisions about jobs into commits
dead_letters    moves jobs that have had all their deliveries to the dead-letter topic
completions     delivers the results of finished jobs to their topic
"""
