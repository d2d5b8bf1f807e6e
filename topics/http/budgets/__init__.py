"""What clients may take.

byte_budget    bytes of requests in memory, for all clients together
byte_shares    what one key may take of it
token_bucket   requests and bytes a second
"""
