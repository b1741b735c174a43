"""The APIs about consumer groups: members, offsets, descriptions."""
