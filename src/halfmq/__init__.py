"""halfmq: a message is visible if and only if the local database transaction that sent it committed."""

__version__ = "0.1.0"
