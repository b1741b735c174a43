"""Rolls, merges, tables and Spark.

- `compacted`: Compaction without Spark: plan, compact in this process, commit, through a
  broker's socket.
- `flights`: A topic with records of every kind, as the tests of the Spark source produce and
  consume it.
- `hadoop_aws`: Spark settings with which stock Spark reads s3a://, for tests: jars and server.
- `plain_spark_numbers`: The demo's numbers by stock Spark.
- `rolled`: Tiering without Spark: roll and merge in this process, through a live broker's
  socket.
- `rolled_transactions`: Three interleaved transactions of one partition, written, rolled in
  pieces, merged, and read.
- `spark_cluster`: A Spark cluster of processes, for tests: a master, a worker, and a Python
  without this project.
- `spark_connect_server`: A Spark Connect server in a process of its own, for tests: tasks have
  nothing of this project.
- `spark_kafka`: Spark's Kafka source and sink, driven by tests: the side of the tests.
- `spark_kafka_session`: A Spark session with Spark's Kafka source and sink, in a process of its
  own: the child.
- `spark_tables`: Spark with Iceberg's runtime, run by tests as a reader of the broker's
  catalogue.
- `table_engines`: What engines read in a topic's table, through the broker's catalogue, as the
  same few facts.
- `topic_table`: A topic with a table whose life comes in steps, and what the table has to hold
  after each.
- `typed_topics`: Topics with schemas, on a broker beside a schema registry: written, rolled and
  read.
"""
