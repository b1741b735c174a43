"""`make bench`: what the promises cost, each figure beside a limit measured in the same run.

A folder holds groups of measurements that belong together; `__main__` lists the groups by name.

- `speed`: producers and consumers: MB/s, processor time, latency, PUTs
- `s3`: the same on a bucket as slow as S3; `cluster`: several brokers on one bucket
- `coordinator`: what commits and look-ups cost, small and large
- `groups`, `transactions`: what consumer groups and transactions cost
- `connections`: what clients cost before they send a record; `requests`: what single requests cost
- `limits`: what holds under load: memory, and how long others wait
- `tiering`: rolls, merges, tables, reads in Spark
- `peers`: the same loads on Kafka and klite
- `tools`: what several of them share: brokers, load, a slow store, the report
- `page`: the last figures as docs/performance.md; `plot`: its picture
"""
