"""WAL batches in, Parquet segments out: the segment format, its reader, and the Spark job.

The job:

- `rounds`: the loop of every job: plan, write, commit; `jobs`: a folder: the driver of `diskless
  tier`
- `spark`: a folder: one Spark task per plan; `roll`: one segment: batches of WAL objects become one
  Parquet object; `wal_rows`: those batches as Arrow rows
- `merging`: a folder: small neighbouring segments become one
- `compaction`: a folder: of each key the newest record stays
- `coordinator_client`: the operations that a job, and a reader of tables, needs of a broker

The Spark source: `source`.
Tables:

- `tables`: a folder, Iceberg tables of the segments

Segments:

- `segment_format`: what a footer says. Read this first. `segment_columns`: columns to and from
  records
- `segment_writer`, `segment_reader`: writing one; serving consumers from it
- `typed_columns`: those that a topic's own types add; `types`: a folder, how schemas become such;
  `segment_sources`: where records come from
- `raw_batches`: batches that nobody can decode
- `segment_verification`: checking every byte of one; `segment_footers`: what a rebuild reads of
  them
"""
