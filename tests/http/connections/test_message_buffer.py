"""What a message of a WebSocket takes while it comes (`topics.http.connections.message_buffer`)."""

from __future__ import annotations

import tracemalloc

from wsproto.events import BytesMessage, TextMessage

from topics.http.connections.message_buffer import MessageBuffer


def test_fragments_are_put_together_as_they_were_sent() -> None:
    buffer = MessageBuffer()
    for text in ("a", "", "\u00e9", "\U0001f600"):
        buffer.extend(TextMessage(data=text))
    assert buffer.take() == ("a\u00e9\U0001f600".encode(), True)
    buffer.extend(BytesMessage(data=bytearray(b"\xff")))
    assert buffer.take() == (b"\xff", False)
    buffer.extend(TextMessage(data="x"))
    buffer.clear()
    buffer.extend(TextMessage(data="y"))
    assert buffer.take() == (b"y", True)


def test_a_character_far_out_makes_no_text_larger() -> None:
    part = TextMessage(data="x" * (1 << 16))
    tracemalloc.start()
    try:
        buffer = MessageBuffer()
        buffer.extend(TextMessage(data="\U0001f600"))
        for _ in range(64):
            buffer.extend(part)
        content, _ = buffer.take()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(content) == 4 + (4 << 20)
    assert peak < 3 * len(content)
