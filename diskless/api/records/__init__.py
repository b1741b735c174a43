"""The APIs about records: produce and fetch, offsets, producers."""
