"""The description of the HTTP interface.

document         making the OpenAPI document
operation        the types of a description: operations, parameters, bodies, answers
description      the purpose, the parameters and the answers of each call
job_operations   those of the calls on queues, groups and schedules
daemon_operations those of the calls about the daemon itself, and of the console
fact             a fact about a field
daemon_facts     those of health, readiness and checkpoints
job_facts        those of the calls that look at jobs, retry and cancel them
evidence_operations those of the calls about evidence
evidence_facts   the fields of their answers
latest_facts     those of the newest records of tags
field_facts      the meaning, the range and the unit of each field
figure_facts     those of the answers about the daemon itself
docs_page        the page at `/v0/docs`
strict_names     refusing unknown names in requests that ask for it
"""
