"""What the daemon gets from its surroundings: time, threads, and the operating system. Below everything but errors.

clock               wall time, monotonic time and time since the boot, as a seam
window_clock        the clock that nobody can set: idempotency keys, stages and leases end by it
instant             one moment by two clocks
offload             blocking calls in worker threads, one limiter for each kind
bounded_calls       calls that may never return
background          tasks that finish what a request has begun
withdrawal          how a call's waits end when its key is withdrawn
process_limits      file descriptors and other limits of the process
garbage_collector   when Python's collector runs
"""
