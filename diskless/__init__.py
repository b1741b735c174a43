"""The broker: Kafka protocol, replica manager, purgatories, read path, configuration, CLI.

`broker` builds, wires and runs all parts: read it first. Folders, each importing only those above
it:

- `loop`: work on the event loop that keeps nobody waiting
- `shared`: what several processes of one broker have in common
- `acls`: the rules of who may do what; `audit`: who did what, and who was refused
- `listeners`: where it listens, and who may connect
- `fetch`: the partitions of a Fetch as columns; fetch sessions
- `protocol`: bytes of the Kafka protocol to values and back
- `topics`: topic configs and names
- `sasl`: how clients log in, without a socket
- `transactions`: transactional ids, and how their transactions end
- `produce`: from a Produce request to its chunk, and from the commit to its answer
- `replica`: append and fetch, and what waits for them
- `sinks`: checks staged objects before they are committed, and shares out their commits
- `groups`: consumer groups of both protocols
- `storage`: the data directory and the bucket prefix: what lies where, and whose it is
- `health`: whether a broker is live and ready, and the HTTP server that says so
- `web`: who asks on the HTTP port, and what they may
- `iceberg`: the catalogue of tables, over HTTP
- `quotas`: clients over their quota
- `server`: connections, frames, memory, turns
- `cluster`: the other brokers, and which of them clients are sent to
- `api`: one Kafka API a file
- `parts`: the parts of a running broker: each step of a start makes one of those before it
- `workers`: a broker of several processes, a head and workers
- `cli`: the command line

What stands here beside `broker`: `ports` (what the API handlers call: protocols, and the values
that cross them), `config`, `config_sources` and `config_reference` (the one configuration; where
it is written; its page), `authorization` (who may do what), `metrics`, `broker_metrics`,
`security_metrics`, `request_metrics` (the page; what is read for it at a scrape; what is counted as
it happens), `broker_http` (what a broker serves over HTTP), `logs`, `addresses`, `descriptors` and
`tls_memory` (how many connections there is room for).
"""
