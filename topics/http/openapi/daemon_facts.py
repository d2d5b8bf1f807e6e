"""The facts about the fields of health, readiness and checkpoints, as in `field_facts`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from topics.http import answer_types
from topics.http.openapi.fact import Fact, seq

DAEMON_FACTS: Final[Mapping[type[Struct], Mapping[str, Fact]]] = {
    answer_types.RootAnswer: {
        "service": Fact("The name of the service."),
        "version": Fact("The version of the daemon."),
        "docs": Fact("Path of the description for people."),
        "openapi": Fact("Path of the description for programs."),
        "topics": Fact("Path of the list of topics."),
        "ready": Fact("Path of the readiness check."),
        "metrics": Fact("Path of the metrics."),
        "console": Fact("Path of the page for browsers; absent with `TOPICS_CONSOLE=0`."),
    },
    answer_types.HealthAnswer: {
        "status": Fact("The process answers."),
        "version": Fact("The version of the daemon."),
        "uptime_ms": seq("Time since the start of the process."),
    },
    answer_types.ReadyAnswer: {
        "status": Fact("Requests are accepted."),
        "wal_replay_complete": Fact("Always true in this answer."),
        "topics": seq("The number of topics."),
        "bucket": Fact("The archive in the bucket; only with one."),
        "standby": Fact("How far a standby has followed its owner; only on one."),
    },
    answer_types.StandbyState: {
        "state": Fact("`waiting` for the bucket or the disk, `opening` before anything is known of the bucket."),
        "owner": Fact("The URL of the daemon that takes changes; null if it is not known."),
        "epoch": seq("The epoch of the last round that is applied."),
        "round": seq("The last round that is applied."),
        "at": seq("The time of what is shown: when that round was cut (epoch ms)."),
        "lag_ms": seq("Since when there may be rounds that are not applied. Beyond 60 s the daemon is not ready."),
    },
    answer_types.BucketState: {
        "state": Fact("`waiting` for the store, `refused` by it: nothing is archived meanwhile; the log says why."),
        "epoch": seq("The epoch in which this daemon writes."),
        "round": seq("The last round that is in the bucket."),
        "lag_bytes": seq("Bytes of the log on the disk that are not in the bucket."),
        "lag_ms": seq("Since when there are some."),
        "has_base": Fact(
            "There is a base of this history, so that a restore is possible. The daemon does not wait for it."
        ),
        "base": seq("The newest base of this history: the number of its round; 0 if there is none."),
        "base_age_ms": seq("The age of that base."),
    },
    answer_types.CheckpointAnswer: {
        "files": Fact("Every file that the checkpoint names, relative to the data directory."),
        "position": Fact("Where replay begins, for each shard."),
    },
}
