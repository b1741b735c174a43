"""Log-ins and users: SaslHandshake, SaslAuthenticate, the SCRAM credentials."""
