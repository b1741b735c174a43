"""Hypothesis without deadlines: on a busy machine they measure the neighbours, not the code."""

from hypothesis import settings

settings.register_profile("wal", deadline=None)
settings.load_profile("wal")
