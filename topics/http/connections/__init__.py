"""Sockets and protocols; what a request means is decided elsewhere.

server                 listening, accepting, draining
lane                   plain HTTP/1.1 requests, served in the task of their connection
request_heads          the strict grammar of plain heads; pure
protocols/             HTTP/2, WebSockets and all other HTTP/1.1: subclasses of hypercorn's protocols
hosts                  which hosts and targets of requests are well formed
connection             one accepted connection
asgi_messages          what an ASGI application receives and sends
exchange               one request as the gate sees it, and the sending of its answer
hangups                noticing peers that have shut down their side
unsent_bytes           a bound on the bytes of answers that wait to be sent
refusals               the answer to input that is not HTTP; request ids
message_buffer         collecting the fragments of a WebSocket message
body_timeouts          how long a client may take over a body or a message
"""
