"""Groups of a topic: competing consumers over a log, each group with leases and a floor of its own. Pure.

group           one group: the records that it has finished, its leases, and the records that it has missed
finished_runs   the seqs that a group has finished: a floor, and runs above it
group_events    the events that change groups, and their form in the log
"""
