"""The jobs of a queue: who holds what, projected from lease events. Pure.

leases          the projection, and every decision about jobs
lease_events    what can happen to jobs, and its form in the log
job_table       the pages there are, and which of them have free jobs
job_pages       one page: columns for a run of seqs
due_pages       when pages have to be looked at again
fair_division   how claimers that arrive together share the jobs
"""
