"""Histories of a bucket that a rebuild starts from, and what it must find.

- `rebuild_bucket`: A bucket of small objects, as the rebuild sees it, and the plan that is made
  of it.
- `rebuild_cluster`: Random histories of a whole cluster, of which a rebuild gets the bucket,
  and the test the truth.
- `rebuild_difference`: What a rebuilt log says otherwise than the cluster that it was rebuilt
  from.
- `rebuild_history`: Histories of a bucket for the tests of rebuilding: brokers, one
  coordinator, rolls, deletions.
- `rebuild_transactions`: Random histories with transactions: what rebuild_cluster plays, and
  these.
"""
