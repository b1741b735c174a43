"""Both ends of the coordinators' wire, and the KIP's schemas of what goes over it.

- `coordinator_listener`: A listener with coordinators that note what they are asked, and answer
  what a test says.
- `kip_1164_schemas`: KIP-1164's request and response schemas, and a codec that knows nothing
  but a schema.
- `message_fields`: Fields of messages as the schemas of KIP-1164 have them, and a commit that
  is made of them.
- `wire_calls`: Calls over a wire client to a server that answers as its script says.
- `wire_server`: The other end of a WireClient: a socket server that does what a test says with
  each request.
"""
