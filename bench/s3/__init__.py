"""Producers and consumers on a bucket as slow as S3: `make bench BENCH=s3`.

- `writing`, `reading`: producers; consumers that catch up
- `outliers`: what a second put is worth where some take far too long
"""
