"""Object stores that fail, wait, race and refuse as a test says.

- `blocking_in_threads`: A blocking store behind the broker's interface, so that one suite tests
  both.
- `faulty_s3`: A reverse proxy in front of an S3 server that does to requests what networks and S3
  do to them.
- `faulty_store`: An object store that fails on demand, around any real one, for brokers in the
  test's process.
- `minio_keys`: Credentials of MinIO that end, and a loopback endpoint that hands them out.
- `opened_s3`: The S3 stores of a broker and of a task, with limits that tests can wait for.
- `racing_listings`: An object store whose listings race with what else happens, and show as
  little as they may.
- `stepped_store`: An object store whose every request waits for a decision: what becomes of it,
  and when.
"""
