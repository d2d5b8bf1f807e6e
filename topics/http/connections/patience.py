"""How long is waited for what a client owes: the rest of a body, or of a message on a WebSocket."""

from __future__ import annotations

from typing import Final

# How long a client may send nothing of what it owes, and how much it has to have sent on average once it has taken a
# minute: less than the slowest line, more than somebody who means to hold a connection and a body's memory.
BODY_IDLE_S: Final = 30.0
BODY_GRACE_S: Final = 60.0
BODY_BYTES_PER_S: Final = 64
