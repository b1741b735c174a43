"""What a broker does about sinks: it looks into what tasks have staged before it is committed.

- `staged_check`: objects of a commit, judged by the rules of Produce
- `sink_counts`: what became of commits, for the metrics
"""
