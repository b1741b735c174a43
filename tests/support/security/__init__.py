"""Certificates, log-ins and rights, and what users with few of them are told.

- `authorization_server`: An authorization server of tests: keys, tokens signed with them, and
  HTTP where both are had.
- `certificates`: Keys and certificates of tests, made by trustme, as the files that listeners
  and clients take.
- `open_and_closed`: Requests that name an open and a closed topic, group or id, and what is
  read off the answers.
- `refused_requests`: Questions to a broker with rules, by users with few rights, and what an
  answer tells of names.
- `refused_world`: A broker to which users with few rights can be sent, ours or Kafka's.
- `refusing_broker`: A broker whose authorizer denies what it is told to, and that notes what
  its APIs call.
- `secured_clients`: Stock clients that log in, or show a certificate: what goes through, what
  they are told, rights.
- `secured_programs`: The clients of secured_clients.py that are programs: kafkajs, kcat, Java's
  of any version.
- `secured_workers`: A broker of two workers whose clients log in and have rules, and what is
  asked of it.
"""
