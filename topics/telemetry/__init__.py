"""The daemon's messages to operators: log lines, the audit log and figures.

logs          the set-up of logging, and the rules for every line
log_lines     the text of one line, as JSON or for a terminal
log_writer    writing lines to stderr from a thread, so that logging never blocks a task
credentials   blanking credentials in texts
audit_log     one JSON line for each control-plane call and deletion
audit_rate    how many refused calls get a line of their own in the audit log
load_window   rates and latencies of the last seconds
figures       the numbers behind /v0/metrics, without formatting
"""
