"""The Python client (`docs/client.md`): the whole of `/v0`, for programs that block and for those on trio or asyncio.

    sync, concurrent          `Client` and `AsyncClient`: the I/O of both, and their lists of methods
    given_settings            the settings of topics and routers, as calls take them
    calls                     each call of `/v0`, as a value that both clients send
    daemon_calls              the calls about the daemon itself
    daemon_results            the types of their answers
    consumer_calls            the calls on named consumers
    schedule_calls            the calls on schedules
    evidence_calls            the calls about evidence
    group_calls               the calls on groups of a log
    job_calls                 looking at jobs, retrying and cancelling them; pausing
    redrive_calls             moving dead letters back
    latest_calls              the newest records of tags, and a table with its changes
    consumption               the state of `consume`: what is finished, and who owns the consumer
    results                   the types of the answers
    evidence_results          those of the calls about evidence
    job_results               those of the calls about many jobs
    latest_results            those of the newest records of tags
    transport                 the request of a call, the result or error of an answer
    daemon_choice             which of several daemons gets the next call
    retry                     which calls are repeated, and when
    errors                    the exceptions
    pages                     reads and lists that take one call for each page
    bulk                      exports, uploads and stages
    streams/                  tails, watches and streams of jobs
    producers/                `Producer` and `AsyncProducer`: records that are sent in batches
    workers/                  `Worker` and `AsyncWorker`: jobs in hand and their leases

Only `sync`, `concurrent`, `streams.tails`, `streams.async_tails`, `producers.producer` and `workers.worker` do I/O. The
package imports nothing of the server. The names below are the public interface; the module of each is imported when the
name is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topics.client.concurrent import AsyncClient as AsyncClient
    from topics.client.errors import ApiError as ApiError
    from topics.client.errors import BadRequest as BadRequest
    from topics.client.errors import ConditionFailed as ConditionFailed
    from topics.client.errors import Conflict as Conflict
    from topics.client.errors import ConnectionFailed as ConnectionFailed
    from topics.client.errors import Fenced as Fenced
    from topics.client.errors import Forbidden as Forbidden
    from topics.client.errors import NotFound as NotFound
    from topics.client.errors import ProtocolError as ProtocolError
    from topics.client.errors import ServerError as ServerError
    from topics.client.errors import Throttled as Throttled
    from topics.client.errors import TooLarge as TooLarge
    from topics.client.errors import TopicFull as TopicFull
    from topics.client.errors import TopicsError as TopicsError
    from topics.client.errors import Unauthorized as Unauthorized
    from topics.client.errors import Unavailable as Unavailable
    from topics.client.producers.producer import AsyncDelivery as AsyncDelivery
    from topics.client.producers.producer import AsyncProducer as AsyncProducer
    from topics.client.producers.producer import Delivery as Delivery
    from topics.client.producers.producer import Producer as Producer
    from topics.client.producers.producer_buffer import BufferFull as BufferFull
    from topics.client.producers.producer_buffer import DeliveryFailed as DeliveryFailed
    from topics.client.producers.producer_buffer import ProducerClosed as ProducerClosed
    from topics.client.results import CaughtUp as CaughtUp
    from topics.client.results import Job as Job
    from topics.client.results import NewAppend as NewAppend
    from topics.client.results import NewRecord as NewRecord
    from topics.client.results import Record as Record
    from topics.client.results import Tombstone as Tombstone
    from topics.client.results import TopicAdded as TopicAdded
    from topics.client.results import TopicDeleted as TopicDeleted
    from topics.client.results import TopicsLeftOut as TopicsLeftOut
    from topics.client.results import Unique as Unique
    from topics.client.retry import Retry as Retry
    from topics.client.streams.async_tails import AsyncJobs as AsyncJobs
    from topics.client.streams.async_tails import AsyncTail as AsyncTail
    from topics.client.streams.follower import Position as Position
    from topics.client.streams.tails import Jobs as Jobs
    from topics.client.streams.tails import Tail as Tail
    from topics.client.sync import Client as Client
    from topics.client.workers.held_jobs import Backoff as Backoff
    from topics.client.workers.held_jobs import Nack as Nack
    from topics.client.workers.held_jobs import Stats as Stats
    from topics.client.workers.worker import AsyncWorker as AsyncWorker
    from topics.client.workers.worker import Worker as Worker

_PLACES = {
    "concurrent": ("AsyncClient",),
    "errors": (
        "ApiError",
        "BadRequest",
        "ConditionFailed",
        "Conflict",
        "ConnectionFailed",
        "Fenced",
        "Forbidden",
        "NotFound",
        "ProtocolError",
        "ServerError",
        "Throttled",
        "TooLarge",
        "TopicFull",
        "TopicsError",
        "Unauthorized",
        "Unavailable",
    ),
    "results": (
        "CaughtUp",
        "Job",
        "NewAppend",
        "NewRecord",
        "Record",
        "Tombstone",
        "Unique",
        "TopicAdded",
        "TopicDeleted",
        "TopicsLeftOut",
    ),
    "retry": ("Retry",),
    "sync": ("Client",),
    "producers.producer_buffer": ("BufferFull", "DeliveryFailed", "ProducerClosed"),
    "streams.follower": ("Position",),
    "workers.held_jobs": ("Backoff", "Nack", "Stats"),
    "producers.producer": ("AsyncDelivery", "AsyncProducer", "Delivery", "Producer"),
    "streams.async_tails": ("AsyncJobs", "AsyncTail"),
    "streams.tails": ("Jobs", "Tail"),
    "workers.worker": ("AsyncWorker", "Worker"),
}
_PLACE_OF = {name: place for place, names in _PLACES.items() for name in names}

__all__ = list(_PLACE_OF)


def __getattr__(name: str) -> Any:
    place = _PLACE_OF.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{place}"), name)
    globals()[name] = value
    return value
