"""Object stores: the contract, and a directory, memory and S3 that keep it.

- `object_store`: the contract. Read this first. `store_url`: which store a URL means
- `file_store`, `memory_store`: in a directory; in memory. `file_drafts`: files without a name yet
- `s3_operations`, `s3_protocol`: what both S3 clients ask and conclude; single requests and answers
- `s3_store`, `blocking_s3_store`: the clients, with an event loop and without one
- `blocking_store`: stores for Spark tasks, also one that counts what is read
- `s3_refusals`: what S3 refuses, as one line for people; `s3_settings`: limits
- `retry`: how often and how fast to try again; `second_puts`: an outlier is put twice
- `observed_store`: whether a store is reached, as the outcomes of operations tell
"""
