"""What the jobs know of Spark: a session, and one task for each plan.

- `roller`: rolls and merges plans. Read this first
- `drivers`: starts Spark in this process, or finds a Spark Connect server
- `tasks`: plans go into tasks and results come out, on both the same way
- `progress`: how many tasks are done
- `task_python`: which Python tasks run in, and what they are sent
"""
