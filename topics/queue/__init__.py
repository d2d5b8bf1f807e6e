"""The jobs of a queue: which node holds which job, projected from lease events. Pure.

leases          every decision about jobs, and what time does to them
job_projection  the jobs as the events have left them
lease_events    the events that change jobs, and their form in the log
claim_order     in which order jobs of several priorities are claimed
key_order       which jobs may be claimed where those of a key have an order
key_limit       which jobs may be claimed where so many of a key are leased at a time
limited_claims  in which order jobs are claimed then
retry_delay     how long a job that has failed is delayed
last_errors     what went wrong with the jobs
job_results     what became of finished jobs, until it is delivered
unique_keys     the unique keys of jobs, and how long they are remembered
shared_pages    values by number that a frozen copy shares with the live one
job_table       the pages of jobs, and which of them have free jobs
job_pages       one page: columns for a run of seqs
due_pages       when each page has to be examined again
claim_limits    how many jobs may be claimed now
fair_division   how claimers that arrive together share the jobs
"""
