"""HTTP: from the bytes of a connection to calls of the engine, and back.

app            making the ASGI application
gate           the steps that every request goes through, whichever handler answers it
routes         the table of routes
calls          one request (`Call`), and the types of answers
answer_types   the fields of each answer, as types
daemon_answers the fields of the answers about the daemon itself
entity_tags    not sending what the client has already
grants         the scopes and names for which a running call needs its key
accept         reading Accept headers
connections/   sockets, protocols, protection against slow and hostile peers
budgets/       limits on what all clients together, and one key, may use
access/        the key of a request, and pages of other origins
requests/      decoding and checking bodies and queries
answers/       encoding records, frames and figures
console/       the files of the page for browsers
openapi/       the description of the interface, and the page that shows it
handlers/      one handler for each call
"""
