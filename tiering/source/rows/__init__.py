"""What one task of a read does: extents to rows.

- `share_rows`: the rows of a share, of WAL objects and segments as one run. Read this first
- `segment_rows`: those of a segment
- `typed_by_field`: columns of the topic's own types, in segments and of WAL rows
- `latest_rows`: of each key the newest alone
"""
