"""`format("diskless")` for Spark: a topic as a table, read and written, without jars.

    from tiering.source import register
    register(spark)

The driver plans: brokers tell where records lie, and offsets are cut into shares, by sizes alone.
Tasks read: each looks up its extents and takes WAL objects and segments from the object store.

- `registration`: makes the format known to a session; `data_source`: what Spark is given
- `options`: what a user may set; `filters`: what a query prunes
- `columns`: names and types; `topic_types`: those of the topic's own types
- `batch`, `stream`, `topic_stream`: the two kinds of read; `reading`: what they share
- `topic_log`: what brokers are asked; `planning`: ranges to shares
- `writing`: a folder: rows become records; `client_properties`: how brokers are reached
- `rows`: one task: extents to rows
"""

from tiering.source.data_source import DisklessDataSource
from tiering.source.registration import register

__all__ = ("DisklessDataSource", "register")
