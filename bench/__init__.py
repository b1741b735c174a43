"""`make bench`: what the promises cost, each figure beside a limit measured in the same run."""
