"""Calls on named consumers. The rules are in `topics.consumers`.

consumer_calls     put, get, list, delete; commit, seek, acquire, release
consumer_commits   turns decisions about consumers into commits of their topic
consumer_reads     reads that begin at a consumer's position, and reads that commit
consumed_records   deletes records that every consumer of a topic has passed
unused_consumers   deletes consumers whose ttl has passed
"""
