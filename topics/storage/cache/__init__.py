"""Caches of data that was read from files, bounded in bytes.

payload_cache   blocks of records
index_cache     index columns and tags
span_loader     loading columns into the cache, off the loop
"""
