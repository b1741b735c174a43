"""What several groups of measurements share.

- `report`: figures with their bounds; a group is a function that is given one
- `broker`: a broker in a process of its own; `fixed_interval`: settings to compare it with
- `load`: stock clients; `paced`: one that produces at a fixed rate
- `raw_client`: a connection that sends what no client library would
- `s3_bed`, `slow_s3`: a bucket as slow as S3, and the proxy that makes it so
- `coordinator_bed`: one metadata partition without a broker
- `run_queue`: how long a process waited for a CPU; `machine`: how fast it all is just now
"""
