"""Mutations. Watchers, streams and sockets."""

from __future__ import annotations

from typing import Final

from mutating.mutation import Mutation

DELIVERY: Final = (
    Mutation(
        "topic-made-later-not-added",
        "delivery",
        "topics/engine/delivery/topic_delivery.py",
        "for watch in self.prefixes.of(topic.name):",
        "for watch in []:",
        "consumers 2: a prefix is also that of topics made later",
        "unit",
    ),
    Mutation(
        "addition-not-told-again",
        "delivery",
        "topics/engine/delivery/prefix_session.py",
        "return TopicPosition(0, feed.sent.epoch, announced=False)",
        "return TopicPosition(0, feed.sent.epoch)",
        "consumers 2: topic-added comes before the first frame of a topic",
        "unit",
    ),
    Mutation(
        "made-again-shown-as-the-same",
        "delivery",
        "topics/engine/delivery/prefix_session.py",
        "feed.over = topic is None or topic.id != feed.sent.epoch",
        "feed.over = topic is None",
        "consumers 2: made again is added anew",
        "unit",
    ),
    Mutation(
        "topics-beyond-the-bound",
        "delivery",
        "topics/engine/delivery/prefix_watches.py",
        "if self._room() > 0:",
        "if self._room() > -1:",
        "consumers 2: beyond TOPICS_MAX_WATCH_TOPICS an error names the rest",
        "unit",
    ),
    Mutation(
        "prefix-beyond-the-key",
        "delivery",
        "topics/engine/delivery/prefix_wishes.py",
        "return name.startswith(self.covered)",
        "return name.startswith(self.prefix)",
        "consumers 2: a key's prefixes limit what matches",
        "unit",
    ),
    Mutation(
        "topic-that-is-waited-for-not-delivered",
        "delivery",
        "topics/engine/delivery/topic_delivery.py",
        "for feed in self._awaited.take(topic.name):",
        "for feed in []:",
        "api 8: a watcher who waits for a topic is given all of it",
        "unit",
    ),
    Mutation(
        "wakeup-lost",
        "delivery",
        "topics/sched/audience.py",
        "self.due.update(self.live)",
        "pass",
        "8.4: a watcher is told what a diff would show",
        "unit",
    ),
    Mutation(
        "frames-of-other-places",
        "delivery",
        "topics/engine/delivery/topic_delivery.py",
        "key = (state, feed.epoch, feed.position, feed.told, feed.wish, feed.outbox and feed.outbox.form)",
        "key = (state, feed.epoch, feed.wish, feed.outbox and feed.outbox.form)",
        "8.4: frames are shared only by those in the same place",
        "life",
    ),
    Mutation(
        "delivered-before-the-sync",
        "delivery",
        "topics/engine/delivery/feed.py",
        "if not self.is_strong or topic.ephemeral:",
        "if True:",
        "semantics 2: a strong watcher sees what is synced",
        "life",
    ),
    Mutation(
        "id-ignored",
        "delivery",
        "topics/engine/delivery/watch_sessions.py",
        "session.rewind(cursors)",
        "pass",
        "8.4: a stream goes on where its id says",
        "unit",
    ),
    Mutation(
        "id-ahead-of-what-was-sent",
        "delivery",
        "topics/engine/delivery/watch_session.py",
        "text = msgspec.json.encode({feed.name: feed.position for feed in self._order if self._goes_on(feed)})",
        "text = msgspec.json.encode({feed.name: feed.position + 1 for feed in self._order if self._goes_on(feed)})",
        "8.4: a stream goes on behind what its id was sent with",
        "unit",
    ),
    Mutation(
        "dropped-frames-forgotten",
        "delivery",
        "topics/engine/delivery/outbox.py",
        "feed.go_back(marks[-1] if marks else feed.sent)",
        "pass",
        "8.8: what a slow client was spared for now it gets later",
        "unit",
    ),
    Mutation(
        "recreated-topic-not-told",
        "delivery",
        "topics/engine/delivery/topic_delivery.py",
        "same_epoch=feed.epoch == topic.id,",
        "same_epoch=True,",
        "8.4: a watcher of an older instance is told `recreated`",
        "life",
    ),
)

SOCKETS: Final = (
    Mutation(
        "busiest-of-the-idle-evicted",
        "sockets",
        "topics/http/connections/server.py",
        """
            for connection in self.idle:
                self.forget(connection)
        """,
        """
            for connection in reversed(self.idle):
                self.forget(connection)
        """,
        "8.7: a crowd that asks for nothing keeps nobody out",
        "unit",
    ),
    Mutation(
        "a-byte-is-progress",
        "sockets",
        "topics/http/connections/connection.py",
        """
            if taken - self._progress >= PROGRESS_BYTES:
                self._progress, self._progress_at = taken, now
        """,
        """
            if taken != self._progress:
                self._progress, self._progress_at = taken, now
        """,
        "8.7: a reader that takes a byte now and then holds no answer for hours",
        "unit",
    ),
    Mutation(
        "a-byte-less-for-hypercorn",
        "sockets",
        "topics/http/connections/lane.py",
        'rest, self._input = self._input, b""',
        'rest, self._input = self._input[1:], b""',
        "api 1: a request that the lane does not take is served as if there were none",
        "unit",
    ),
    Mutation(
        "a-byte-less-for-the-lane",
        "sockets",
        "topics/http/connections/protocols/http1.py",
        "return self.connection.trailing_data[0]",
        "return self.connection.trailing_data[0][1:]",
        "api 1: requests that are sent behind one another are all answered",
        "unit",
    ),
    Mutation(
        "chunks-on-the-lane",
        "sockets",
        "topics/http/connections/request_heads.py",
        "if len(headers) != count or count > MAX_FIELDS or not _NOT_PLAIN.isdisjoint(headers):",
        "if len(headers) != count or count > MAX_FIELDS:",
        "api 1: a body in chunks ends where its chunks say, and is no other request",
        "unit",
    ),
    Mutation(
        "the-lane-reads-behind-a-body",
        "sockets",
        "topics/http/connections/lane.py",
        "return await self._read(min(most, BULK_READ_BYTES))",
        "return await self._read(BULK_READ_BYTES)",
        "api 1: a request behind a body is a request",
        "unit",
    ),
    Mutation(
        "the-lane-goes-on-within-a-body",
        "sockets",
        "topics/http/connections/lane.py",
        "return self._ended and self.body_complete and not self._closes and not self.connection.is_broken",
        "return self._ended and not self._closes and not self.connection.is_broken",
        "api 1: a body that was not received is no other request",
        "unit",
    ),
    Mutation(
        "half-an-answer-and-then-a-frame",
        "sockets",
        "topics/http/connections/lane.py",
        "lock.acquire_nowait()  # at once: nothing may be sent, and nothing cancelled, behind the first part",
        "await lock.acquire()  # at once: nothing may be sent, and nothing cancelled, behind the first part",
        "api 1: nothing is sent in the middle of an answer",
        "unit",
    ),
    Mutation(
        "a-drain-goes-on-with-the-next-request",
        "sockets",
        "topics/http/connections/server.py",
        "if self.is_draining or connection.is_ending or connection.is_broken:",
        "if connection.is_ending or connection.is_broken:",
        "api 11: a daemon that stops finishes the requests in progress and takes no others",
        "unit",
    ),
    Mutation(
        "cut-call-told-as-refused",
        "sockets",
        "topics/http/routes.py",
        "return bool((self.needs or READ) & ~READ) and not self.only_looks",
        "return False",
        "consumers 7: a call that was cut and may be carried out is not told as one that was not begun",
        "unit",
    ),
    Mutation(
        "poll-cut-while-it-waits",
        "sockets",
        "topics/http/handlers/data_plane.py",
        "call.allow(request.wait_ms)",
        "pass",
        "consumers 7: the time limit of a call leaves a long poll its wait",
        "unit",
    ),
)
