"""The `topics` command: one module for each group of commands, loaded when one of them is named.

    app                which commands there are, shared options, how a command line ends
    serve              the daemon in the foreground
    topic_commands     ls, show, create, set, rm, seal
    records/           append, transaction, and records as text
    read_commands      read and tail
    evidence_commands  evidence ...
    evidence_files     files of checkpoints and proofs: read, checked, compared
    fence_commands     fence rm
    router_commands    router ...
    consumer_commands  consumer ...
    schedule_commands  schedule ...
    group_commands     group ...
    daemon_commands    key and clients
    queue_commands     queue ...
    job_commands       queue jobs, retry and cancel
    exec_jobs          jobs as commands, for `queue work --exec`
    figures/           metrics, top, bench
    offline/           inspect and verify
    bucket_commands    restore and bucket ...
    completion         completion for shells
    guide              docs/commands.md, made of the commands
    output             tables, JSON, progress bars
    values             durations, sizes, times and filters as people write them
    failures           messages and exit codes
    stop_signals       signals that ask a command to end
    signal_exceptions  signals that end a command as an exception would
    withheld_modules   imports without what a library loads only because it is there

It is a client of the REST interface; only `serve`, `offline` and `bucket_commands` import the daemon or its storage.
"""
