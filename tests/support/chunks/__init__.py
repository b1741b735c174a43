"""The write path: batches made by hand, disks and uploads that fail.

- `failing_disk`: A disk that does what it is told to: fail, write half, run full.
- `power_cut_disk`: A disk whose power is cut: what was not synced is there, partly there, or
  not.
- `written_records`: Records as a test wrote them, to look for a timestamp inside of an extent.
"""
