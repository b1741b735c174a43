"""The write path: batches made by hand, disks and uploads that fail.

- `batch_builder`: A plain RecordBatch v2 writer, one record at a time, straight from the
  format's description.
- `chains`: Fragment chains of bytes that did not come from a socket.
- `failing_disk`: A disk that does what it is told to: fail, write half, run full.
- `power_cut_disk`: A disk whose power is cut: what was not synced is there, partly there, or
  not.
- `uploader_rig`: An uploader on a directory of chunks and a store whose puts can wait or fail.
- `write_loop_rig`: A write loop over real files: what it sealed, and how each batch ended.
- `write_path`: What the tests of chunks, write loop and uploader share: small batches, and
  disks that fail.
- `write_path_model`: The write path in virtual time: the real seal policy between modelled
  producers and a store.
- `written_records`: Records as a test wrote them, to look for a timestamp inside of an extent.
"""
