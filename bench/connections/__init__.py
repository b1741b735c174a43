"""What clients cost a broker by being connected, or by connecting.

- `connections`: idle ones, many requests on one, many that come and go; `storm`: these
- `tls`, `tls_records`: what TLS costs; by the size of the client's records
- `logins`: what clients cost before the broker knows them
"""
