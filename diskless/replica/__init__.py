"""Append and fetch: what a partition's log is, and what waits for it.

- `replica_manager`: what the handlers call. Read this first; Produce goes on in diskless/produce.
- `fetcher`, `fetch_look`: Fetch, and the delayed fetch; what a fetch knows while it is served
- `offset_lookup`: ListOffsets; `served_topics`: which topic a request names
- `batch_reader`, `extent_source`, `batch_stamping`: from extents to the bytes that a consumer gets;
  which batches of an extent an answer takes
- `log_ends`: what is known of where logs begin and end
- `timestamp_search`: offsets by time; `metadata_topic`: the metadata logs as a topic
"""
