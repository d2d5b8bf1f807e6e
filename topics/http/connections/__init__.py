"""Sockets and protocols; what a request means is decided elsewhere.

server                 listening, accepting, draining
protocols/             HTTP/1.1, HTTP/2 and WebSockets: subclasses of hypercorn's protocols
hosts                  which hosts and targets of requests are well formed
connection             one accepted connection
hangups                noticing peers that have shut down their side
unsent_bytes           a bound on the bytes of answers that wait to be sent
message_buffer         collecting the fragments of a WebSocket message
body_timeouts          how long a client may take over a body or a message
"""
