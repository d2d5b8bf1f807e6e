"""Jobs that a program works on.

held_jobs   jobs in hand and their leases
worker      `Worker` and `AsyncWorker`
"""
