"""``python -m halfmq``: the same as ``halfmq``."""

from halfmq.cli.entry import run

run()
