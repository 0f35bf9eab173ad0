"""The settings of this broker (29031), for administrators."""

from typing import Any

from halfmq.broker.remoting.gateway import Connection
from halfmq.broker.remoting.handlers import Handlers, Parts
from halfmq.wire.remoting.configuration import SETTINGS
from halfmq.wire.remoting.header import Request


class ConfigurationCommands(Handlers):
    """They do not change while the broker runs, so nothing durable is said."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._settings = SETTINGS.encode(parts.settings)

    def show(self, connection: Connection, request: Request[Any]) -> None:
        """29031: each setting with its value and its source."""
        self._answer(connection, request, body=self._settings)
