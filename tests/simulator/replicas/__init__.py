"""Two to four daemons over one bucket, in a simulation that a seed determines: the promises of `docs/spec/bucket.md`
section 7 hold after all pauses, partitions and crashes (`docs/design/replication.md` section 9).

plan          what a seed means: the daemons, their clocks, and what happens to them
machine       one machine: its clock, its disk, its way to the store; how it is paused, cut off and killed
judge         what clients were told and have seen, and which of that does not hold
nodes         a daemon that is started again and again: as the owner, or as a standby that may take over
surroundings  ways to the bucket, chance, short waits
clients       what clients do, and tell the judge
history       one history: the nodes, the clients, the events, and the end, when everything has to be there
crash_points  the same story again and again, in which a daemon is killed at each of its steps
scripts       two stories at the edge of a lease
builds        broken builds that must be found
attempt       one plan in a bounded time, for the command line and for tests
"""
