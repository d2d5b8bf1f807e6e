"""topics: a persistent, append-only log service on one node.

    daemon     the tree of tasks, the order of starting and of stopping: read this first
    daemon_start   what a start needs before that, and why it may be refused
    standby    what the daemon does while it follows another one
    cli        the command `topics`, a client of the REST interface
    spark      Spark reads and writes topics, as a client and as a reader of files
    client     the Python clients; they import nothing of the server
    http       requests, streams and sockets
    engine     the live topics, and every call that reads or changes them
    bucket     a second home of the data, in object storage
    storage    bytes on disks: the log, segments, snapshots, recovery, maintenance
    sched      which topic is served next, and what is done under pressure
    groups     competing consumers over a log; pure
    log        one topic in memory; pure
    queue      the leases of a queue; pure
    consumers  the named consumers of a topic; pure
    schedules  records that are appended by the clock; pure but for the calendar
    routing    routers and their graph; pure
    schemas    schemas of topics; pure
    conditions conditions of appends, and fences; pure
    config     every TOPICS_* setting
    auth       API keys
    telemetry  log lines, the audit log, figures
    runtime    clocks, worker threads, calls that may hang, limits of the process
    evidence   Merkle trees, proofs and signed notes; pure, and below all of these
    filters    which records a reader wants; pure, and below all of these
    model, job_model   what requests carry and calls answer; of jobs in a module of their own
    errors     the one error that a client is told
    raw_bytes  raw bytes as JSON, the data of a record

Imports point downwards in this list and nowhere else, as the contracts in `pyproject.toml` check; `client` imports
nothing of the others.
"""

__version__ = "0.1.0"
