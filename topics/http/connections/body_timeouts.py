"""How long a client may take over the rest of a body, or of a message on a WebSocket.

The bounds are met by the slowest honest line, but not by a client that only wants to hold a connection and memory.
"""

from __future__ import annotations

from typing import Final

BODY_IDLE_S: Final = 30.0
"""The longest time without any byte, seconds."""

BODY_GRACE_S: Final = 60.0
"""After this time the average rate counts, seconds."""

BODY_BYTES_PER_S: Final = 64
"""The least average rate, bytes a second."""
