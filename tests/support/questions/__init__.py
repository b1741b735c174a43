"""Requests made by hand, of any API and version.

- `admin_questions`: What is asked of a broker in each version about the cluster, topics and
  users.
- `asker`: Questions to a broker, one per API: what all of them need.
- `extreme_requests`: Request bodies of any API and version whose fields hold the extremes of
  their types.
- `group_questions`: What is asked of a broker in each version about groups.
- `kafka_raw_client`: A Kafka client that sends exactly what it is told, frame by frame.
- `raw_producer`: A transactional producer of the classic protocol that sends what it is told,
  when it is told.
- `raw_transactions`: A transactional producer by raw requests: it sends whatever a test wants,
  whenever it wants.
- `record_questions`: What is asked of a broker in each version about records and transactions.
- `versioned_requests`: Requests of any version, written and read with schemas that the broker
  does not use.
- `worker_clients`: What a raw client asks of a broker of workers: a record in, all records out.
"""
