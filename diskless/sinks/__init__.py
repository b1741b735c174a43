"""What a broker does about sinks: it looks into what tasks have staged before it is committed, and
sees to it that a batch that is committed at one coordinator is so at all.

- `staged_check`: objects of a commit, judged by the rules of Produce
- `shares`: divides them among coordinators; `share_teller`: has each commit its share
- `home_asker`: asks for such a coordinator whether the batch is complete
- `sink_counts`: what became of commits, for the metrics
"""
