"""What the simulator knows of the outcomes of jobs: results, dead letters that go back, cancellations, keys that are
full (`docs/spec/consumers.md` sections 4 and 5). It has topics of its own, which nothing else touches: a queue, a log
with a group, their dead letters, and their results. So its rules are exact where those of other topics are bounds.

outcome_plans   what is done with them, as part of a plan
outcome_facts   what clients know of a job and of its source
outcome_seen    what a start shows
outcome_lists   lists of jobs, held against what is there
outcome_rules   what must not happen, and what a start must show
outcome_steps   the clients: producers, workers, and people who redrive
change_steps    people who look, retry and cancel
"""
