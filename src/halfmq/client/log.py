"""The client's logger: standard ``logging``, silent until the application configures it; no files."""

import logging
from typing import Final

log: Final = logging.getLogger("halfmq.client")
log.addHandler(logging.NullHandler())
