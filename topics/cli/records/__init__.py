"""Records on the command line: how they are written, read and sent.

record_commands      the commands for records
append_command       `topics append`
latest_command       `topics latest`
append_sinks         where the records of an append go
transaction_command  `topics transaction`
record_input         records from arguments, files and pipes
record_lines         records as lines
"""
