"""Kafka's own programs and stock clients, each behind one face.

- `client_matrix`: The clients of the matrix: each with the ways it has to read many topics at
  once.
- `java_client`: Kafka's Java producer and consumer as one of the stock clients, and its other
  scenarios.
- `jvm`: Kafka's own command line tools and Java clients, run by tests.
- `kafka_broker`: A broker of Kafka's own, in a process, as the judge of ours: with
  kafka_broker(...) as broker:.
- `kafka_commands`: Kafka's command line tools as tests call them: by short name, on one broker,
  and checked.
- `kafkajs`: kafkajs in a Node process that tests drive: a stock client, a member of groups, an
  administrator.
- `kcat`: kcat as a stock client: it sends lines that it is given, and prints what it reads.
- `numbered_records`: Records that carry their number, from an idempotent producer that knows
  what was acknowledged.
- `refused_sockets`: kafka-python leaves the socket of a refused connection to the collector;
  this closes it.
- `schema_registry`: A schema registry of the HTTP interface that stock serializers know, in a
  thread of the test.
- `steady_load`: A producer that goes on until it is told to stop, and the reading back of what
  it delivered.
- `stock_clients`: confluent-kafka, kafka-python and aiokafka behind one face: send these records,
  read them back.
"""
