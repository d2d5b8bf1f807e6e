"""Encoding answers.

sse                  frames of live delivery as server-sent events
websocket_messages   frames of live delivery as WebSocket messages
arrow_stream         exports as Arrow streams
request_figures      the counts of the gate
load_figures         rates and latencies of the last seconds, and the storage
metrics              figures as Prometheus text and as JSON
"""
