"""Encoding answers.

sse                  frames of live delivery as server-sent events
websocket_messages   frames of live delivery as WebSocket messages
arrow_stream         exports as Arrow streams
metrics              figures as Prometheus text and as JSON
"""
