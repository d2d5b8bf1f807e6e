"""The files that a checkpoint writes besides segments.

snapshot     the layout of snapshots and of the parts of topics; reading and writing them
manifests    a topic's part as a file of its own, in generations
disk_state   which part of a topic is durable, and how far the log goes beyond it
queue_dump   the jobs of a queue in a part
group_dump   the groups of a topic in a part
clock_mark   the window clock in `meta/clock`
"""
