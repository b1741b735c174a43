"""Several processes that are one broker: a head, and workers that share its clients.

    head      metadata logs, replicas, coordinators, groups, transactions, background work, HTTP
    workers   connections, chunks, uploads, reads; each in a lane of its own

In the order in which things happen:

- `spawner`: forks workers; `birth_facts`: what they are told then
- `group`: the head's workers, from birth to stop; `head_parts`: what the head serves them with
- `worker`: the process; `divided_settings`: its share of limits; `worker_parts`: what it is made of
- `line`: messages between both; `head_line`: the end of the worker, and with the head
- `news`: what the head tells of the state, as bytes; `head_news` tells it, `known` keeps it
- `doors`: further connections to the head; `head_client`: the coordinators through them;
  `relay`: requests of clients through them
- `connections`: the head accepts, and says which worker has which
- `security`: who clients are and what they may, in workers

A broker of one process has nothing of this (`broker.workers=1`).
"""
