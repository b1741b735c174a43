"""Values as bytes and back: the tools of all floors, in Kafka's encoding.

- `fields`: the primitive types; the one varint, the one zigzag; the reader that believes nothing
- `layouts`: dataclasses and NamedTuples whose bytes follow from their fields
"""
