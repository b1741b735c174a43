"""What single requests cost a broker.

- `fetch`: consumers of many partitions in which nothing happens
- `purgatory`: delayed operations that only wait
- `acl`: rules of access control
"""
