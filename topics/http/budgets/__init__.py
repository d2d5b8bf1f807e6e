"""Limits on what clients may use.

byte_budget    bytes of requests in memory, of all clients together
byte_shares    the share of it that one key may take
token_bucket   requests and bytes a second
"""
