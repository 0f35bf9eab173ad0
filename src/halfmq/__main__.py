"""``python -m halfmq``: the same as ``halfmq``."""

from halfmq.cli.main import app

app()
