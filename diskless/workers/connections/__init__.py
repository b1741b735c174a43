"""Which worker has which connection.

- `assigner`: the head accepts, and gives each to a worker
- `accepted`: how a socket gets from the head to a worker
- `balance`: who has the next one, and who gives one up, by what each has to do
- `heavy_connections`: a worker tells what it does, and gives up a connection; `metrics`
"""
