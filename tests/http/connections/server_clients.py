"""Clients of a server in the same process."""

from __future__ import annotations

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.settings
import trio
import trio.testing

from tests.http.conftest import Served

APPEND = b'{"records":[{"data":1}]}'
JSON = b"host: x\r\ncontent-type: application/json\r\n"


class H2Client:
    """An HTTP/2 client that does what it is told, also what no library would."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.connection = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding=None))
        self.statuses: dict[int, int] = {}
        self.bodies: dict[int, bytes] = {}
        self.ended: set[int] = set()
        self.closed = False

    @classmethod
    async def open(cls, served: Served) -> H2Client:
        client = cls(await served.connect())
        client.connection.initiate_connection()
        await client.flush()
        return client

    async def flush(self) -> None:
        await self.stream.send_all(self.connection.data_to_send())

    async def request(self, method: str, path: str, *, end: bool = True, headers: dict[str, str] | None = None) -> int:
        stream_id = self.connection.get_next_available_stream_id()
        fields = {":method": method, ":path": path, ":scheme": "http", ":authority": "x", **(headers or {})}
        self.connection.send_headers(stream_id, list(fields.items()), end_stream=end)
        await self.flush()
        return stream_id

    async def receive(self) -> None:
        """Take in one read's worth of events."""
        data = await self.stream.receive_some(1 << 16)
        if not data:
            self.closed = True
            return
        for event in self.connection.receive_data(data):
            if isinstance(event, h2.events.ResponseReceived):
                self.statuses[event.stream_id] = int(dict(event.headers)[b":status"])
            elif isinstance(event, h2.events.DataReceived):
                self.bodies[event.stream_id] = self.bodies.get(event.stream_id, b"") + event.data
                self.connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.StreamEnded | h2.events.StreamReset):
                self.ended.add(event.stream_id)
        await self.flush()

    async def answer(self, stream_id: int) -> int:
        with trio.fail_after(60):
            while stream_id not in self.ended:
                assert not self.closed
                await self.receive()
        return self.statuses[stream_id]


async def is_closed(stream: trio.SocketStream) -> bool:
    """Whether the server closes now; what it has sent before is passed over."""
    with trio.move_on_after(5):
        try:
            while await stream.receive_some(1 << 16):
                pass
        except trio.BrokenResourceError:
            pass
        return True
    return False
