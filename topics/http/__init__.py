"""HTTP: from bytes of a connection to calls of the engine, and back.

app            the ASGI application
gate           what every request passes, whichever handler answers it
routes         the table of routes
calls          one request on its way, and the types of answers
answer_types   what calls are answered with
grants         what a running call needs its key for
accept         what a client would rather have
connections/   sockets, protocols, guards against slow and hostile peers
budgets/       what all clients together, and one key, may take
access/        who asks, and from which page
requests/      decoding and checking of what requests carry
answers/       how records, frames and figures are encoded
openapi/       the description of the interface, and the page that shows it
handlers/      the calls themselves
"""
