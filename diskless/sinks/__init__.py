"""What a broker does for sinks: it checks staged objects before they are committed, and has every
coordinator commit its share of a batch.

- `staged_check`: objects of a commit, judged by the rules of Produce
- `shares`: divides them among coordinators; `share_teller`: has each commit its share
- `home_asker`: asks for such a coordinator whether the batch is complete
- `sink_counts`: what became of commits, for the metrics
"""
