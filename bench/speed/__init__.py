"""Producers and consumers on a broker: `make bench BENCH=speed`.

- `throughput`: MB/s and processor time of each kind of producer; `sink`: a socket beside it
- `consuming`: the same of consumers, at the tail and from both tiers
- `latency`: from a produce call to its acknowledgement; `client_limits`: the least that the client
  has it, and the most it sends, where answers take a given time; `durable_limits`: the same where
  they take the durable work; `durable_sink`: what does that
- `puts`: WAL objects a second; `slopes`: what one more object and one more batch cost;
  `small_objects`: what an object of four batches costs; `object_floor`: its durable work alone;
  `object_steps`: its steps by one thread
- `slow_store`: a bucket whose PUTs take 50 ms
- `workers`: two workers against one process
- `hour`: what an hour of 1 MB/s leaves behind
"""
