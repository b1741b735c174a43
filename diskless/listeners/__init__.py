"""Listeners: their names and addresses, what accepts connections on them, and TLS.

- `endpoints`: NAME://host:port; `listener_settings`: the section of the configuration
- `listeners`: from the configuration to bound sockets, or to the line that says what is wrong
- `exposure`: which of them may not be open to other machines
- `listening`: takes connections from a socket; `acceptor`: admits who may connect
- `lingering`: closes them so that clients read what they were sent last
- `connection_limits`: who may; `pending_logins`: how many may be about to log in

TLS, from the socket up:

- `tls_settings`: the section of the configuration; `tls_keys`: what is in its files, read again
- `tls_listener`: from an accepted socket to a connection; `handshakes`: whose turn it is
- `tls_stream`: one connection; `certificate_names`: who is at its other end
"""
