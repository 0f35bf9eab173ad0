"""Log lines of a command that runs until it is stopped, and that is no broker: ``halfmq relay`` and ``halfmq worker``."""

import logging
import os
import sys

from halfmq.broker.log_output import LogOutput
from halfmq.client.log import logger


def log_lines(*, verbose: bool) -> LogOutput:
    """Log to standard error: lines of halfmq from INFO on, of others from WARNING on; ``verbose``: all. Call ``end`` of the result last."""
    lines = LogOutput(sys.__stderr__.fileno() if sys.__stderr__ is not None else os.open(os.devnull, os.O_WRONLY))
    logging.basicConfig(level=logging.DEBUG if verbose else logging.WARNING, handlers=[lines])
    logger("halfmq").setLevel(logging.DEBUG if verbose else logging.INFO)
    return lines
