"""Metadata logs and their snapshots, and what every log must do.

- `log_bucket`: A bucket in memory, and any number of metadata logs on it.
- `log_contract`: What every metadata log must do (L1-L8 of metadata/log/log.py), as a suite to
  inherit from.
- `log_media`: Where the metadata logs of a cluster lie: below a directory, or in an object
  store.
- `small_segmented_logs`: Segmented logs of small files, as their tests fill, open and read
  them.
- `snapshot_bench`: A metadata log that can be pruned, a state that follows it, and snapshots of
  that state.
- `snapshot_store_bench`: What is stored of snapshots, and a sleep that ends a keeper's run.
"""
