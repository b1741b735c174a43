"""`diskless tier` for spark-submit, which takes a program of Python by the name of its file.

    spark-submit --master spark://HOST:7077 deploy/tier.py --bootstrap HOST:9092 --interval 60

Diskless is installed where the driver runs; executors get what they need from it.
"""

import sys

from diskless.cli.cli import main

sys.exit(main(["tier", *sys.argv[1:]]))
