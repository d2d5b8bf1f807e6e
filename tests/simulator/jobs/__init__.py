"""What the simulator knows of jobs: queues whose records have times, priorities and unique keys, whose jobs come in
order for each key, and that are limited and paused (`docs/spec/consumers.md` section 5).

job_plans   what is done with such queues, as part of a plan
job_facts   what clients know of a job and of a queue of jobs
job_rules   what must not happen, as far as that can be told from outside
job_steps   the clients: appends, claims, nacks, pauses
"""
