"""Filters: which records a reader wants, by tag, node, meta and data (`docs/spec/consumers.md` section 2). Pure, and
below the model, so that requests can carry a filter.

record_filter   a filter that is ready for use: parsing it from JSON, and asking it about records
predicates      tests of one value: a text, a number, a member of data
json_places     finding places in JSON without decoding the rest
exact_numbers   comparing JSON numbers exactly
filter_text     the same filters as people write them on a command line
filter_error    what is wrong with a filter, and where
"""
