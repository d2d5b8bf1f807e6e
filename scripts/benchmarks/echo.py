"""The bare server that the daemon is compared with: `python -m benchmarks.echo PORT_FILE`."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Any

import trio
from hypercorn.config import Config
from hypercorn.trio import serve


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Read the body, answer a constant."""
    if scope["type"] != "http":
        raise NotImplementedError(scope["type"])
    while (await receive()).get("more_body"):
        pass
    body = b'{"ok":true}'
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    port_file = Path(sys.argv[1])
    part = port_file.with_suffix(".part")
    part.write_text(str(listener.getsockname()[1]))
    os.replace(part, port_file)
    config = Config()
    config.bind = [f"fd://{listener.fileno()}"]
    config.accesslog = config.errorlog = None
    config.keep_alive_max_requests = 1 << 31
    trio.run(serve, echo, config)


if __name__ == "__main__":
    main()
