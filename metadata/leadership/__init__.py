"""Who should lead which metadata partition, and how leadership gets there.

- `ranks`: the broker that should lead each metadata partition, and who stands before whom
- `candidate`: who a process is when it leads
- `leader_moves`: a leader's worker that resigns to the broker that should lead

Who leads is decided by the log alone (metadata/log/object_log.py); nothing here can make two
brokers lead. It only makes the right one come first.
"""
