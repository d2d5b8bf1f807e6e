"""A way to a server as if that were far away: `python -m benchmarks.distant PORT_FILE HOST PORT DELAY_MS`.

Takes connections on a port of its own, and passes everything on. What the server answers arrives `DELAY_MS` later. So a
store on the same machine takes as long for a put as one in a data centre, and no more of the processor.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import trio

PIECE: Final = 1 << 16
PIECES: Final = 1024
"""How much of an answer may be on its way; then the server waits."""

ENDS: Final = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)


async def connect(host: str, port: int, delay_s: float, client: trio.SocketStream) -> None:
    """Serve one connection until either side ends it."""
    with suppress(*ENDS):
        async with client, await trio.open_tcp_stream(host, port) as server, trio.open_nursery() as nursery:
            send, receive = trio.open_memory_channel[tuple[float, bytes]](PIECES)
            nursery.start_soon(_pass_on, client, server, nursery.cancel_scope)
            nursery.start_soon(_late, receive, client, nursery.cancel_scope)
            while data := await server.receive_some(PIECE):
                await send.send((trio.current_time() + delay_s, data))
            await send.aclose()


async def _pass_on(client: trio.SocketStream, server: trio.SocketStream, scope: trio.CancelScope) -> None:
    with suppress(*ENDS):
        while data := await client.receive_some(PIECE):
            await server.send_all(data)
    scope.cancel()


async def _late(
    pieces: trio.MemoryReceiveChannel[tuple[float, bytes]], client: trio.SocketStream, scope: trio.CancelScope
) -> None:
    with suppress(*ENDS):
        async for at, data in pieces:
            await trio.sleep_until(at)
            await client.send_all(data)
    scope.cancel()


async def serve(port_file: Path, host: str, port: int, delay_s: float) -> None:
    """Listen, write the port into a file, and serve until the process is ended."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    part = port_file.with_suffix(".part")
    part.write_text(str(listeners[0].socket.getsockname()[1]))
    os.replace(part, port_file)
    await trio.serve_listeners(partial(connect, host, port, delay_s), listeners)


def main() -> None:
    port_file, host, port, delay_ms = sys.argv[1:]
    trio.run(serve, Path(port_file), host, int(port), float(delay_ms) / 1000)


if __name__ == "__main__":
    main()
