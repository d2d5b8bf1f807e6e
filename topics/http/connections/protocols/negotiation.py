"""Which protocol a connection speaks: HTTP/1.1 first, HTTP/2 when the client says so.

All that is taken from hypercorn, h11 and h2 beyond their public interfaces is in this package, listed in
`docs/design/hypercorn.md`. Nothing is patched in place.
"""

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
    """Starts with HTTP/1.1 and goes over to HTTP/2 when the client says so, with our versions of both."""

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
        try:
            await self.protocol.handle(event)
        except H2ProtocolAssumedError as error:
            data = error.data
            self.protocol = Http2(*self._arguments())
            await self.protocol.initiate()
            # What looked like a request was none: hypercorn would wait for its end, and not look at the time.
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
        """Whether something has come in part: where there is no request, a head, a frame, a block of headers."""
        protocol = self.protocol
        assert isinstance(protocol, Http1 | Http2)
        return protocol.has_part()

    async def ended(self) -> None:
        """The peer is gone: wake the answers that wait for its flow control window, which nobody else would."""
        if isinstance(self.protocol, H2Protocol):
            for buffer in list(self.protocol.stream_buffers.values()):
                await buffer.close()
