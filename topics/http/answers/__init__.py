"""How answers are encoded.

sse                  records as server-sent events
websocket_messages   records as WebSocket messages
arrow_stream         exports as Arrow
metrics              figures as text and as JSON
"""
