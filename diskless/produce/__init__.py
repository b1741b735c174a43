"""From a Produce request to its chunk, and from the commit to its answer.

- `request_batches`: checks the batches of a request and makes rows of them. Read this first.
- `delayed_produce`: what waits for outcomes, and what a repeated batch waits for
- `batch_lanes`: batches that wait for something before they are appended, and stay in order
- `commit_lane`: commits uploaded chunks in order, and answers producers
"""
