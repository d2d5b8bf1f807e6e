"""The description of the interface.

document       the OpenAPI document
description    what each call is for, takes and answers
field_facts    meaning, range and unit of each field
docs_page      the page at `/v0/docs`
strict_names   refusing names that the description does not have
"""
