"""The whole story on real data: `python -m demo`, or `make demo`, which sets itself up.

Stock clients write every flight that left New York in 2013 into a broker, the broker is killed,
Spark rolls the log into Parquet, and every record is compared with what was sent. At the end the
topics are tables: DuckDB and Spark answer what the CSV answers, while a producer writes on. With
`--store minio` the objects are in a bucket and there are two brokers, one of which dies.

The program uses Diskless only from outside, as a user would: the `diskless` command, the Kafka
protocol, the catalogue of tables, Spark's data source, the metrics page. It is a test with a story:
exit status 0 means that every comparison held.
"""
