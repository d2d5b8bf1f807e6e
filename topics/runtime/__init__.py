"""The environment of the daemon: clocks, threads and the operating system. It imports only `topics.errors`.

clock               the clocks of the machine, behind a protocol that tests replace
held_clock          the clock by which topics are judged, which stands still between the rounds that a standby follows
window_clock        the clock that nobody can set: idempotency keys, stages and leases expire by it
instant             one moment as two clocks show it
offload             blocking calls in worker threads, with a limit on threads for each kind of call
bounded_calls       calls that may never return, given up after a time without progress
wakeup              an event with a deadline
turns               the order in which bulk work holds the loop
background          tasks that complete a change after the request that asked for it has ended
withdrawal          ending the waits of a request when its API key is withdrawn
process_limits      file descriptors and memory of the process
garbage_collector   how often Python's garbage collector runs
"""
