"""Health: whether a broker is live and ready, and the HTTP server that says so.

- `health`: what `/livez` and `/readyz` say; `health_settings`: its limits
- `store_watch`: keeps knowing whether the object store is reached
- `http_server`: a small HTTP server in a thread
"""
