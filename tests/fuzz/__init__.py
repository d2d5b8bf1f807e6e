"""Bytes from outside, as nobody would send or write them, to everything that makes structures of bytes.

`targets` is the table of what is fuzzed; `test_fuzz` goes through it with hypothesis, and `python -m tests.fuzz`
(`scripts/fuzz`) with atheris, for as long as one likes.
"""
