"""The broker: Kafka protocol, replica manager, purgatories, read path, configuration, CLI."""
