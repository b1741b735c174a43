"""The coordinator of KIP-1164: metadata log, record types, SQLite state, offset assignment."""
