"""The offsets of one partition's batches, without the metadata that had them.

- `placement`: the steps. Read this first.
- `fixed`: what is known for certain; `fit`, `gaps`, `order`: what goes between known offsets, the
  arithmetic of that, and what comes in which order
- `endings`: how transactions end that nobody has ended
"""
