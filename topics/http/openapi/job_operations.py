"""The description of the calls on queues, groups and schedules, as in `description`."""

from __future__ import annotations

from typing import Final

from topics.http import answer_types
from topics.http.openapi.fact import FILTER, setting
from topics.http.openapi.operation import (
    JSON,
    LOG_GROUPS,
    PAGE,
    PREFIX,
    QUEUES,
    SCHEDULES,
    WRITES,
    Answer,
    JsonBody,
    Operation,
    Parameter,
    boolean,
    events,
    ok,
    query_of,
)
from topics.http.requests import (
    group_requests,
    job_requests,
    queue_requests,
    redrive_requests,
    schedule_requests,
)

JOB_OPERATIONS: dict[str, Operation] = {}
_QUEUE_CODES: Final = ("topic_not_found", "not_a_queue", *WRITES)
_HELD_CODES: Final = ("batch_too_large", *_QUEUE_CODES)
_ACK_CODES: Final = ("record_too_large", *_HELD_CODES)
_HELD: Final = {"node": "worker-1", "seqs": [1]}

JOB_OPERATIONS |= {
    "claim": Operation(
        QUEUES,
        "Claim jobs",
        "Leases jobs to `node`. A job that is not acked before its lease ends can be claimed again.",
        ok(answer_types.ClaimAnswer, "The jobs. There may be fewer than asked for, or none."),
        body=JsonBody(queue_requests.ClaimBody, {"node": "worker-1", "max": 10, "wait_ms": 1000}),
        codes=_QUEUE_CODES,
    ),
    "ack": Operation(
        QUEUES,
        "Acknowledge jobs",
        "The jobs are done, and their records are deleted. Where the config names a topic for results (`completed`), "
        "they are delivered there first; until then the jobs count as delayed.",
        ok(answer_types.AckAnswer),
        body=JsonBody(queue_requests.AckBody, _HELD),
        codes=_ACK_CODES,
    ),
    "nack": Operation(
        QUEUES,
        "Give jobs back",
        "The jobs can be claimed again, after `delay_ms`, or else as `retry` in the config of the topic says. With "
        "`dead` they are moved to the dead-letter topic.",
        ok(answer_types.NackAnswer),
        body=JsonBody(queue_requests.NackBody, {**_HELD, "delay_ms": 1000}),
        codes=_HELD_CODES,
    ),
    "pause": Operation(
        QUEUES,
        "Pause a queue",
        "Claims and streams get no jobs, until the time `until` or until the queue is resumed. Jobs that are leased "
        "stay so. A queue that is paused already is paused as this call says.",
        ok(answer_types.PauseAnswer, "The queue is paused, synced."),
        body=JsonBody(queue_requests.PauseBody, {}, required=False),
        codes=_QUEUE_CODES,
    ),
    "resume": Operation(
        QUEUES,
        "Resume a queue",
        "Claims and streams get jobs again. Resuming a queue that is not paused is no failure.",
        ok(answer_types.PauseAnswer, "The queue is not paused, synced."),
        codes=_QUEUE_CODES,
    ),
    "redrive": Operation(
        QUEUES,
        "Move dead letters back",
        "A task moves the letters that are in the topic now: each to the queue or the group that it came from, or all "
        "to `to`. Each move is a transaction, so that a letter is never lost and never there twice. The job has a new "
        "seq and no deliveries; a group gets its record again. If a redrive of the topic is running already, the "
        "answer is the state of that one. Letters of a topic whose name the key does not cover stay.",
        {202: Answer("The redrive is running.", {JSON: answer_types.RedriveAnswer})},
        body=JsonBody(redrive_requests.RedriveBody, {"max": 1000}, required=False),
        codes=("topic_not_found", "topic_exists_incompatible", *WRITES),
    ),
    "get_redrive": Operation(
        QUEUES,
        "State of a redrive",
        "How far the last redrive of the topic since the start of the daemon has come.",
        ok(answer_types.RedriveAnswer),
        codes=("topic_not_found",),
    ),
    "stop_redrive": Operation(
        QUEUES,
        "Stop a redrive",
        "Answers when the letters that are on their way are moved. Moved letters stay moved. Stopping where none is "
        "running is no failure.",
        ok(answer_types.RedriveAnswer, "No redrive is running."),
        codes=("topic_not_found", "read_only", "not_owner"),
    ),
    "extend": Operation(
        QUEUES,
        "Extend leases",
        "The leases end `lease_ms` from now.",
        ok(answer_types.ExtendAnswer),
        body=JsonBody(queue_requests.ExtendBody, {**_HELD, "lease_ms": 60_000}),
        codes=_HELD_CODES,
    ),
    "work": Operation(
        QUEUES,
        "Stream of jobs",
        "A stream of server-sent events that leases jobs to this connection, up to `max` at a time. When the stream "
        "ends, jobs that are not acked can be claimed again. Each job is an event `job` with its seq as `id`; its data "
        "is an entry of `claimed` with the `topic`. A comment is sent after 15 s without an event. After an event "
        "`error` with code 504 the stream goes on; any other `error` ends it.",
        events("The stream is open."),
        parameters=query_of(queue_requests.ClaimBody, "node", "max", "lease_ms", example={"node": "worker-1"}),
        codes=("not_acceptable", *_QUEUE_CODES),
    ),
}

_STATE: Final = Parameter(
    "state",
    "Only jobs in this state; without it, jobs in all states but `dead`, which needs read on the dead-letter topic.",
    {"type": "string", "enum": list(job_requests.STATES)},
)
_LIST: Final = (
    _STATE,
    Parameter("filter", f"{FILTER.text} As JSON.", {"type": "string", "minLength": 1}),
    *PAGE,
    boolean("touch", True, "Count this as a use of the topic, which may set its priority."),
)
_LIST_TEXT: Final = (
    "In the order of their seqs, each with its record. A page is a view of one moment; nothing is promised from one "
    f"page to the next. A page looks at no more than {setting('max_scan')} records, so it may be empty and have a "
    "`next_cursor`."
)
_RETRY_TEXT: Final = (
    "Delayed jobs can be claimed at once: those with a delay, and those that wait for a time. Those that are about to "
    "move to the dead letters are skipped. Dead jobs are moved back as by a redrive; with `state: dead`, `seqs` are "
    "those of their letters. A filter without `state` is about both, `seqs` are about delayed jobs. Needs `filter` or "
    "`seqs`."
)
_CANCEL_TEXT: Final = (
    "that are ready, delayed or leased; a later ack of the holder is skipped. Those that are about to move to the dead "
    "letters are skipped. Needs `filter` or `seqs`. Many jobs are cancelled in pieces."
)
_FORGET: Final = {"filter": ["tag", "Eq", "old"]}

JOB_OPERATIONS |= {
    "list_jobs": Operation(
        QUEUES,
        "List jobs",
        _LIST_TEXT,
        ok(answer_types.JobListAnswer, "A page of the list."),
        parameters=_LIST,
        codes=("topic_not_found", "not_a_queue", "forbidden"),
    ),
    "retry_jobs": Operation(
        QUEUES,
        "Retry jobs",
        _RETRY_TEXT,
        ok(answer_types.JobsChangedAnswer),
        body=JsonBody(job_requests.RetryJobsBody, {"seqs": [1]}),
        codes=_HELD_CODES,
    ),
    "cancel_jobs": Operation(
        QUEUES,
        "Cancel jobs",
        f"Deletes jobs {_CANCEL_TEXT}",
        ok(answer_types.JobsChangedAnswer),
        body=JsonBody(job_requests.CancelJobsBody, _FORGET),
        codes=_HELD_CODES,
    ),
}

_GROUP_CODES: Final = ("topic_not_found", "group_not_found", "not_a_log", *WRITES)
_GROUP_HELD_CODES: Final = ("batch_too_large", *_GROUP_CODES)

JOB_OPERATIONS |= {
    "put_group": Operation(
        LOG_GROUPS,
        "Create or change a group",
        "A group takes the records of a log like the jobs of a queue: each is leased to one worker at a time, and is "
        "finished by an ack. The records stay, for other groups and readers. `from` counts at its creation only. A "
        "change keeps the fields that are not in the body. Unknown fields are refused.",
        {
            200: Answer("The group existed. The answer has its present state.", {JSON: answer_types.GroupAnswer}),
            201: Answer("The group was created.", {JSON: answer_types.GroupAnswer}),
        },
        body=JsonBody(group_requests.PutGroupBody, {"from": "earliest"}, required=False),
        codes=("topic_not_found", "not_a_log", "forbidden", *WRITES),
    ),
    "get_group": Operation(
        LOG_GROUPS,
        "State of a group",
        "How far it is, and who holds how much.",
        ok(answer_types.GroupAnswer, "The present state."),
        codes=("topic_not_found", "group_not_found", "not_a_log"),
    ),
    "all_groups": Operation(
        LOG_GROUPS,
        "List the groups of all topics",
        "The groups of the logs that the key covers, in the order of topics and groups. `prefix` is about the names of "
        "topics.",
        ok(answer_types.GroupListAnswer, "A page of the list."),
        parameters=(PREFIX, *PAGE),
    ),
    "list_groups": Operation(
        LOG_GROUPS,
        "List groups",
        "The groups of a log, in the order of their names.",
        ok(answer_types.GroupListAnswer, "A page of the list."),
        parameters=(PREFIX, *PAGE),
        codes=("topic_not_found", "not_a_log"),
    ),
    "delete_group": Operation(
        LOG_GROUPS,
        "Delete a group",
        "Its leases end. Deleting a group that does not exist is no failure.",
        ok(answer_types.GroupDeletedAnswer),
        codes=("topic_not_found", "not_a_log", *WRITES),
    ),
    "group_claim": Operation(
        LOG_GROUPS,
        "Claim records",
        "Leases records to `node`. One that is not acked before its lease ends can be claimed again. A claim of a "
        f"group with a filter looks at no more than {setting('max_scan')} records, and answers then, also "
        "if `wait_ms` is not over.",
        ok(answer_types.GroupClaimAnswer, "The records. There may be fewer than asked for, or none."),
        body=JsonBody(queue_requests.ClaimBody, {"node": "worker-1", "max": 10, "wait_ms": 1000}),
        codes=_GROUP_CODES,
    ),
    "group_ack": Operation(
        LOG_GROUPS,
        "Finish records",
        "The group has finished the records, as durably as `durability` of the topic says. They stay in the log. Where "
        "the group names a topic for results (`completed`), they are delivered there first.",
        ok(answer_types.GroupAckAnswer),
        body=JsonBody(queue_requests.AckBody, _HELD),
        codes=("record_too_large", *_GROUP_HELD_CODES),
    ),
    "group_nack": Operation(
        LOG_GROUPS,
        "Give records back",
        "The records can be claimed again, at once or after `delay_ms`.",
        ok(answer_types.GroupNackAnswer),
        body=JsonBody(queue_requests.NackBody, {**_HELD, "delay_ms": 1000}),
        codes=_GROUP_HELD_CODES,
    ),
    "group_extend": Operation(
        LOG_GROUPS,
        "Extend leases of a group",
        "The leases end `lease_ms` from now.",
        ok(answer_types.GroupExtendAnswer),
        body=JsonBody(queue_requests.ExtendBody, {**_HELD, "lease_ms": 60_000}),
        codes=_GROUP_HELD_CODES,
    ),
    "group_pause": Operation(
        LOG_GROUPS,
        "Pause a group",
        "Claims and streams of the group get nothing. Leases stay.",
        ok(answer_types.GroupPauseAnswer, "The group is paused, synced."),
        body=JsonBody(queue_requests.PauseBody, {}, required=False),
        codes=_GROUP_CODES,
    ),
    "group_resume": Operation(
        LOG_GROUPS,
        "Resume a group",
        "Claims and streams get records again. Resuming a group that is not paused is no failure.",
        ok(answer_types.GroupPauseAnswer, "The group is not paused, synced."),
        codes=_GROUP_CODES,
    ),
    "group_work": Operation(
        LOG_GROUPS,
        "Stream of records to work on",
        "The stream of a queue (`/work`), for a group: the data of its events has `topic` and `group`.",
        events("The stream is open."),
        parameters=query_of(queue_requests.ClaimBody, "node", "max", "lease_ms", example={"node": "worker-1"}),
        codes=("not_acceptable", *_GROUP_CODES),
    ),
}

JOB_OPERATIONS |= {
    "list_group_jobs": Operation(
        LOG_GROUPS,
        "List records of a group",
        f"Those that the group has not finished. {_LIST_TEXT}",
        ok(answer_types.GroupJobListAnswer, "A page of the list."),
        parameters=_LIST,
        codes=("topic_not_found", "group_not_found", "not_a_log", "forbidden"),
    ),
    "retry_group_jobs": Operation(
        LOG_GROUPS,
        "Retry records of a group",
        _RETRY_TEXT,
        ok(answer_types.GroupJobsChangedAnswer),
        body=JsonBody(job_requests.RetryJobsBody, {"seqs": [1]}),
        codes=_GROUP_HELD_CODES,
    ),
    "cancel_group_jobs": Operation(
        LOG_GROUPS,
        "Cancel records of a group",
        f"The group finishes records {_CANCEL_TEXT}",
        ok(answer_types.GroupJobsChangedAnswer),
        body=JsonBody(job_requests.CancelJobsBody, _FORGET),
        codes=_GROUP_HELD_CODES,
    ),
}

_SCHEDULE_CODES: Final = ("schedule_not_found",)

JOB_OPERATIONS |= {
    "put_schedule": Operation(
        SCHEDULES,
        "Create or change a schedule",
        "The daemon appends `record` to `topic` at the times of `cron` in `time_zone`, or every `every_ms` after the "
        "creation. A field that is not in the body has its default; only `paused` stays as it is. The topic is made at "
        "the first firing, and whenever it is missing. Unknown fields are refused.",
        {
            200: Answer("The schedule existed. The answer has its present state.", {JSON: answer_types.ScheduleAnswer}),
            201: Answer("The schedule was created.", {JSON: answer_types.ScheduleAnswer}),
        },
        body=JsonBody(
            schedule_requests.PutScheduleBody,
            {"topic": "jobs", "record": {"data": {"report": "daily"}}, "cron": "0 3 * * *"},
        ),
        codes=("forbidden", "record_too_large", "topic_exists_incompatible", *WRITES),
    ),
    "get_schedule": Operation(
        SCHEDULES,
        "State of a schedule",
        "Its definition, when it fired last and when it fires next.",
        ok(answer_types.ScheduleAnswer, "The present state."),
        codes=("forbidden", *_SCHEDULE_CODES),
    ),
    "list_schedules": Operation(
        SCHEDULES,
        "List schedules",
        "In the order of their names; those that the key covers with name and topic.",
        ok(answer_types.ScheduleListAnswer, "A page of the list."),
        parameters=(PREFIX, *PAGE),
    ),
    "delete_schedule": Operation(
        SCHEDULES,
        "Delete a schedule",
        "Its topic stays. Deleting a schedule that does not exist is no failure.",
        ok(answer_types.ScheduleDeletedAnswer),
        codes=("forbidden", *WRITES),
    ),
    "run_schedule": Operation(
        SCHEDULES,
        "Run a schedule now",
        "Appends its record now, synced, also if it is paused. Its times stay as they are.",
        ok(answer_types.ScheduleRunAnswer, "The record is on disk."),
        codes=(
            "forbidden",
            *_SCHEDULE_CODES,
            "topic_exists_incompatible",
            "record_too_large",
            "topic_full",
            "schema_violation",
            *WRITES,
        ),
    ),
    "pause_schedule": Operation(
        SCHEDULES,
        "Pause a schedule",
        "It fires nothing until it is resumed. A repeat changes nothing.",
        ok(answer_types.ScheduleAnswer, "The present state."),
        codes=("forbidden", *_SCHEDULE_CODES, *WRITES),
    ),
    "resume_schedule": Operation(
        SCHEDULES,
        "Resume a schedule",
        "It fires again from now on. Firings that fell into the pause are not made later. A repeat changes nothing.",
        ok(answer_types.ScheduleAnswer, "The present state."),
        codes=("forbidden", *_SCHEDULE_CODES, *WRITES),
    ),
}
