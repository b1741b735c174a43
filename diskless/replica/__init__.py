"""Append and fetch: what a partition's log is, and what waits for it.

- `replica_manager`: Produce, from the checks to the write loop. Read this first.
- `delayed_produce`: what waits for outcomes, and what a repeated batch waits for
- `fetcher`, `fetch_look`: Fetch, and the delayed fetch; what a fetch knows while it is served
- `offset_lookup`: ListOffsets; `served_topics`: which topic a request names
- `batch_lanes`: batches that wait for something before they are appended, and stay in order
- `commit_lane`: commits uploaded chunks in order, and answers producers
- `batch_reader`, `extent_source`, `batch_stamping`: from extents to the bytes that a consumer gets;
  which batches of an extent an answer takes
- `purgatory`: where delayed operations wait; `log_ends`: what is known of where logs begin and end
- `timestamp_search`: offsets by time; `metadata_topic`: the metadata logs as a topic
"""
