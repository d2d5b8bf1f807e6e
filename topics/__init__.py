"""topics: a persistent, append-only log service on one node."""

__version__ = "0.1.0"
