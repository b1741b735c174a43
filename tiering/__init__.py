"""WAL batches in, Parquet segments out: the segment format, its reader, and the Spark job."""
