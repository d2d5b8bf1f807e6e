"""The sinks of `topics append`: one sends with a producer, one in batches under keys that depend on the input alone.

Responsible for sending records in order and without holes, for naming the lines that were not appended, and for
counting.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NoReturn, Self

from topics.cli import failures
from topics.cli.output import count
from topics.client import calls
from topics.client.errors import ConnectionFailed, ServerError, TopicsError
from topics.client.producers.producer import Delivery, DeliveryFailed, Producer, ProducerClosed
from topics.client.results import NewRecord
from topics.client.retry import may_repeat
from topics.client.sync import Client

if TYPE_CHECKING:
    from topics.cli.records.append_command import AppendSummary

KEYED_BATCH_BYTES: Final = 1 << 20
BUFFERED_RECORDS: Final = 10_000
BUFFERED_BYTES: Final = 128 << 20
"""The longest line, each byte of it escaped in JSON, fits."""
NOTE_AFTER_S: Final = 2.0
"""After so many seconds of waiting for the end, say why."""
_REFUSED_RECORD: Final = re.compile(r"records\[(\d+)\]")


class Sink(ABC):
    """Sends records, and knows the lines that they come from. A context manager."""

    def __init__(self, summary: AppendSummary) -> None:
        self.summary = summary

    @abstractmethod
    def send(self, number: int, record: NewRecord) -> None:
        """Send the record of line `number`, or keep it for a batch. Waits while too many records are under way. Raises
        Failed if an earlier record was not appended."""

    @abstractmethod
    def look(self) -> bool:
        """Count the records that were appended since the last call. Return True if records are under way. Raises Failed
        if a record was not appended."""

    @abstractmethod
    def finish(self, *, whole: bool, late: Callable[[], object]) -> None:
        """Send the rest, and wait until all records are appended. `whole`: the input has come to its end. `late` is
        called if that takes long, before a message says so. Raises Failed if a record was not appended."""

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        """End the sending. After KeyboardInterrupt nothing more is sent."""


class LiveSink(Sink):
    """Sends each record as it comes, with a Producer. A record waits for others for at most `linger_ms`, or while the
    batch before is being sent. When the producer's buffer is full, `send` waits."""

    def __init__(
        self,
        client: Client,
        summary: AppendSummary,
        *,
        batch: int,
        linger_ms: float,
        create: bool,
        give_up_after: float,
    ) -> None:
        super().__init__(summary)
        self._producer = Producer(
            client,
            linger_ms=linger_ms,
            batch_records=batch,
            max_buffered_records=max(BUFFERED_RECORDS, 2 * batch),
            max_buffered_bytes=BUFFERED_BYTES,
            send_timeout=math.inf,
            give_up_after=give_up_after,
            close_timeout=math.inf,
            create=create,
            halt_on_failure=True,
        )
        self._under_way: deque[tuple[Delivery, int]] = deque()
        """The records that were sent and not counted yet, with the numbers of their lines."""

    def send(self, number: int, record: NewRecord) -> None:
        try:
            self._under_way.append((self._producer.send(self.summary.topic, record), number))
        except ProducerClosed:
            self.look()
            raise

    def look(self) -> bool:
        while self._under_way and self._under_way[0][0].done:
            delivery, number = self._under_way.popleft()
            try:
                seq = delivery.result(0)
            except TopicsError as error:
                self._fail([number, *self._others(error)], error)
            self.summary.add(seq, seq, 1)
        return bool(self._under_way)

    def finish(self, *, whole: bool, late: Callable[[], object]) -> None:
        try:
            self._producer.flush(NOTE_AFTER_S)
        except TimeoutError:
            late()
            left = count(self._producer.buffered)
            failures.tell(f"still waiting for the daemon to take what was read ({left} to go); Ctrl-C gives up")
        except DeliveryFailed:
            pass  # `look` says which
        self._close()
        self.look()

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        interrupted = kind is not None and issubclass(kind, KeyboardInterrupt)
        self._close(0.0 if interrupted else None)
        left = []
        for delivery, number in self._under_way:
            try:
                seq = delivery.result(0)
            except TopicsError:
                left.append(number)
            else:
                self.summary.add(seq, seq, 1)
        if interrupted and left:
            failures.tell(f"{_lines(left)} not known to be appended")

    def _close(self, timeout: float | None = None) -> None:
        try:
            self._producer.close(timeout)
        except DeliveryFailed:
            pass  # `look` says which

    def _others(self, error: TopicsError) -> Iterator[int]:
        """The other lines of a batch that has failed with `error`."""
        while self._under_way and self._under_way[0][0].done:
            try:
                self._under_way[0][0].result(0)
            except TopicsError as another:
                if another is error:
                    yield self._under_way.popleft()[1]
                    continue
            return

    def _fail(self, numbers: Sequence[int], error: TopicsError) -> NoReturn:
        raise not_appended(numbers, error) from None


class KeyedSink(Sink):
    """Sends batches under the keys KEY/0, KEY/1, ..., one after the other.

    The records alone decide where a batch ends, not the times at which they come. So the same input makes the same
    batches, and the daemon does not append again the batches of an earlier run. A batch that may not be complete is not
    sent, because a repeat would send another one under its key. Holds one batch in memory.
    """

    def __init__(self, client: Client, summary: AppendSummary, *, key: str, batch: int, create: bool) -> None:
        super().__init__(summary)
        self._client = client
        self._key = key
        self._most = batch
        self._create = None if create else False
        self._batches = 0
        self._records: list[bytes] = []
        self._numbers: list[int] = []
        self._size = 0

    def send(self, number: int, record: NewRecord) -> None:
        encoded = calls.encode_record(record)
        self._records.append(encoded)
        self._numbers.append(number)
        self._size += len(encoded)
        if len(self._records) >= self._most or self._size >= KEYED_BATCH_BYTES:
            self._append()

    def look(self) -> bool:
        return False

    def finish(self, *, whole: bool, late: Callable[[], object]) -> None:
        if not self._records:
            return
        if whole:
            self._append()
        else:
            failures.tell(f"{_lines(self._numbers)} not sent, as the batch is not whole: repeat it with the same key")

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is not None and issubclass(kind, KeyboardInterrupt) and self._numbers:
            failures.tell(f"{_lines(self._numbers)} not known to be appended: repeat it with the same key")

    def _append(self) -> None:
        records, numbers = self._records, self._numbers
        fields = {"idempotency_key": f"{self._key}/{self._batches}", "create": self._create}
        call = calls.encoded_append(self.summary.topic, records, fields, return_seqs=False)
        try:
            appended = self._client.run(call)
        except TopicsError as error:
            raise not_appended(numbers, error) from None
        if appended.count != len(records):
            raise failures.CommandFailure(
                f"the key {fields['idempotency_key']!r} was used for a batch of {appended.count} records before, and "
                f"{_lines(numbers)} not it: not the same input, or not the same --batch",
                failures.EXIT_CONFLICT,
            )
        self.summary.add(appended.first_seq, appended.last_seq, appended.count, repeated=appended.deduped)
        self._batches += 1
        self._records, self._numbers, self._size = [], [], 0


def not_appended(numbers: Sequence[int], error: TopicsError) -> failures.CommandFailure:
    """The failure of a batch, with the numbers of its lines. Where the daemon names a record, its line is named."""
    refused = _REFUSED_RECORD.match(str(error.detail.get("field", "")))
    said = failures.message(error)
    if refused is not None and int(refused[1]) < len(numbers) > 1:
        said = f"line {numbers[int(refused[1])]}: {said}"
    unknown = isinstance(error, ConnectionFailed | ServerError) and not may_repeat(error, repeatable=False)
    what = "may be appended or not" if unknown else "not appended, and nothing after"
    return failures.CommandFailure(f"{_lines(numbers)} {what}: {said}", failures.exit_code(error))


def _lines(numbers: Sequence[int]) -> str:
    """`line 3 is`, `lines 3 to 7 are`"""
    return f"line {numbers[0]} is" if len(numbers) == 1 else f"lines {numbers[0]} to {numbers[-1]} are"
