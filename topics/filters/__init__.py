"""Filters: which records a reader wants, by tag, node, meta and data (`docs/spec/consumers.md` section 2). Pure, and
below the model, so that requests can carry a filter.

record_filter   a filter that is ready for use: parsing it from JSON, and evaluating it for records
predicates      tests of one value: a text, a number, a member of data
json_places     finding places in JSON without decoding the rest
exact_numbers   comparing JSON numbers exactly
filter_text     the same filters as people write them on a command line
filter_error    the error for an invalid filter: the mistake and its place
"""
