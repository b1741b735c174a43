"""The workers of a leader: they delete, sweep, expire, take snapshots, and look.

- `file_workers`, `file_agreement`: WAL objects without live batches; has all coordinators agree
  that nobody knows a file
- `orphan_scan`: WAL objects that nobody committed
- `note_keeper`, `notes_sweep`: keeps what objects note of others when they are deleted; drops it
  when nobody needs it
- `retention`: old records; `deletion_steps`: a large deletion as several bounded operations
- `row_sweeper`, `catalogue_sweep`: what deleted topics leave behind: rows; whole topics beside the
  catalogue
- `sweeps`: what else is left behind in the bucket: tables of deleted topics, uncommitted segments
- `producer_expiry`: silent producers; `broker_sessions`: which brokers are alive;
  `deposed_broker`: who led and fell silent
- `periodic`: how most of them run: a pause, a pass, and again
- `tier_lag`: how far segments and tables are behind, for the metrics
- `snapshot_keeper`: when to take snapshots, which to keep, how far to prune
"""
