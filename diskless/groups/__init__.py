"""Consumer groups: who is in them, what is assigned, and how far they have read."""
