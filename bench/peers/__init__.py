"""The same client and the same loads on what people would run instead: `make bench BENCH=peers`.

- `peers`: the loads
- `systems`: how each is installed, started and stopped
"""
