"""The content of a `.data` file of either version, for tests that look into one."""

from __future__ import annotations

from topics.storage.files.file_header import FILE_HEADER_BYTES, decode_file_header, first_frame
from topics.storage.segments.segment_format import DataScan, scan_data


def rows_of(content: bytes, end: int | None = None) -> DataScan:
    """The frames of a file, up to the first that does not verify."""
    header = decode_file_header(content[:FILE_HEADER_BYTES])
    start, end = first_frame(header), len(content) if end is None else end
    return scan_data(content[start:end], start, end=end, salt=header.salt if header is not None else None)
