"""Who asks on the HTTP port, and what they may: rights beside Kafka's listeners.

- `http_gate`: what the routes ask, from the thread of the HTTP server. Read this first.
- `http_logins`: who somebody is, by certificate or token, and the grant of tokens for passwords
- `issued_tokens`: the short-lived tokens that are granted
- `http_settings`: the section of the configuration
"""
