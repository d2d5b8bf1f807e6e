"""The jobs: each module has `run`, for programs that have a session, and `command`, for `python -m topics.spark`.

    load, archive, restore   files to records; topics to Parquet; Parquet to records
    rollup                   a stream of records becomes windows
    audit                    `verify`, with the work divided among executors
    archive_files            the directory of an archive
    templates                `{carrier}:{flight}` over the columns of a row
    locks                    a lock on what a job writes to
    progress                 a bar while Spark works

`topics.spark.session` has their common part.
"""
