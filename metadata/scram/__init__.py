"""SCRAM (RFC 5802, RFC 7677): how somebody proves to know a password without sending it.

No module here knows a socket or a catalogue:

- `credentials`: what is stored of a password, and how it is computed
- `text`: the four messages as text, to values and back
- `server`: the side that has the credentials; a broker
- `client`: the side that has the password; a broker at another one, a tiering job
"""
