"""The coordinator's operations as APIs: those of KIP-1164, of brokers, of tiering jobs."""
