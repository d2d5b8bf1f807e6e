"""A black-box client of the daemon, written against the wire contract (`docs/spec/api.md`, sections 1 to 6 and 11)
alone."""
