"""Which protocol a connection speaks: HTTP/1.1 at first, HTTP/2 if the client asks for it."""

from __future__ import annotations

from typing import Any

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol import ProtocolWrapper
from hypercorn.protocol.h2 import H2Protocol
from hypercorn.protocol.h11 import (
    H2CProtocolRequiredError,
    H2ProtocolAssumedError,
)

from topics.http.connections.protocols.http1 import Http1
from topics.http.connections.protocols.http2 import Http2


class Protocols(ProtocolWrapper):
    """The protocol of one connection: `Http1`, replaced by `Http2` if the client asks for it."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.protocol = Http1(*self._arguments())

    def _arguments(self) -> tuple[Any, ...]:
        return (
            self.app,
            self.config,
            self.context,
            self.task_group,
            self.state,
            self.ssl,
            self.client,
            self.server,
            self.send,
        )

    async def handle(self, event: Event) -> None:
        """Take an event of the connection: data, or its end. Raises NoMoreRequests."""
        try:
            await self.protocol.handle(event)
        except H2ProtocolAssumedError as error:
            data = error.data
            self.protocol = Http2(*self._arguments())
            await self.protocol.initiate()
            # The preface of HTTP/2 looked like the head of a request. Without this the connection would not be idle,
            # and no timeout would end it.
            await self.send(Updated(idle=True))
        except H2CProtocolRequiredError as error:
            data = error.data
            self.protocol = Http2(*self._arguments())
            try:
                await self.protocol.initiate(error.headers, error.settings)
            except (h2.exceptions.H2Error, ValueError):  # HTTP2-Settings is not base64url of a SETTINGS payload
                await self.send(Closed())
                return
        else:
            return
        if data:
            await self.protocol.handle(RawData(data=data))

    def has_part(self) -> bool:
        """Return True if there is incomplete input: a part of a head, of a frame, or of a block of headers."""
        protocol = self.protocol
        assert isinstance(protocol, Http1 | Http2)
        return protocol.has_part()

    def unused_input(self) -> bytes:
        """The input behind the last request that was answered over HTTP/1.1."""
        protocol = self.protocol
        assert isinstance(protocol, Http1)
        return protocol.unused_input()

    async def ended(self) -> None:
        """Wake the answers that wait for the peer's flow control window, because the peer is gone."""
        if isinstance(self.protocol, H2Protocol):
            for buffer in list(self.protocol.stream_buffers.values()):
                await buffer.close()
