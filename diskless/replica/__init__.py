"""Append and fetch: what a partition's log is, and what waits for it.

- `replica_manager`: the one place that knows what a partition's log is. Read this first.
- `batch_lanes`: batches that need work before they are appended: in threads, and in order
- `commit_lane`: commits uploaded chunks in order, and answers producers
- `batch_reader`, `batch_stamping`: from extents to the bytes that a consumer gets; which batches of
  an extent an answer takes
- `purgatory`: where delayed operations wait; `log_ends`: what is known of where logs begin and end
- `timestamp_search`: offsets by time; `metadata_topic`: the metadata logs as a topic
- `noted_facts`: what is noted of topics and partitions for a rebuild
"""
