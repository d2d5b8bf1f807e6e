"""The jobs of a queue: which node holds which job, projected from lease events. Pure.

leases          the projection, and every decision about jobs
lease_events    the events that change jobs, and their form in the log
job_table       the pages of jobs, and which of them have free jobs
job_pages       one page: columns for a run of seqs
due_pages       when each page has to be examined again
fair_division   how claimers that arrive together share the jobs
"""
