"""Who a client is: SASL, without a socket.

- `login`: the log-in of one connection, as a state machine. Read this first.
- `mechanisms`: what a mechanism is to a log-in, and SCRAM; `plain`: PLAIN; `scram_users`: whose
  passwords both check; `oauth`: OAUTHBEARER, by tokens of an authorization server
- `broker_login`: how brokers log in to each other; `broker_secrets`: by which secret,
  `cluster_secret`: what it is and where it lies
- `failure_delay`: how long somebody waits who failed
- `sasl_settings`: the section of the configuration

How many connections may be in the middle of a log-in: `diskless.listeners.pending_logins`.
"""
