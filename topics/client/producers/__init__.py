"""Records that are sent in batches.

producer_buffer   records that wait to be sent
producer          `Producer` and `AsyncProducer`
"""
