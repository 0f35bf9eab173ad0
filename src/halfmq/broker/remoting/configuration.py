"""The settings of this broker for administrators: what they are (29031), and changes while it runs (29037)."""

import logging
from typing import Any, Final

from halfmq.broker.remoting.gateway import Connection
from halfmq.broker.remoting.handlers import Handlers, Parts
from halfmq.broker.services.actors import actor
from halfmq.core.commands import SetSetting, UnsetSetting
from halfmq.core.decision import Done, Refused
from halfmq.wire.remoting.codes import code_name
from halfmq.wire.remoting.configuration import EXT_WARNING, SETTINGS, SetSettingFields
from halfmq.wire.remoting.header import Request

log: Final = logging.getLogger("halfmq.operators")


class ConfigurationCommands(Handlers):
    """Shows settings, and changes them."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._settings = parts.settings

    def show(self, connection: Connection, request: Request[Any]) -> None:
        """29031: each setting with its value and its source."""
        self._answer_durably(connection, request, body=SETTINGS.encode(self._settings.shown()))

    def set(self, connection: Connection, request: Request[Any]) -> None:
        """29037: give a setting another value, or the one of the configuration again; or say what would become of that."""
        fields: SetSettingFields = request.ext
        name = fields.setting
        if self._gateway.audit is not None:
            what = code_name(request.code)
            self._gateway.audit.about(
                connection,
                request.opaque,
                what,
                f"{'preview of ' if fields.preview else ''}setting {name[:80]!r}",
                fields.reason,
            )
        by = actor(connection, fields.operator, fields.reason, "who changes the setting")
        if isinstance(by, Refused):
            self._refuse(connection, request, by)
            return
        command: SetSetting | UnsetSetting = UnsetSetting(name, by, fields.preview)
        warning = ""
        if not fields.unset:
            value = self._settings.value_of(name, fields.value)
            if isinstance(value, Refused):
                self._refuse(connection, request, value)
                return
            command = SetSetting(name, value, self._settings.configured(name), by, fields.preview)
            warning = self._settings.warning(name, value)
        answer = self._answering(connection, request, Done, lambda _: {EXT_WARNING: warning} if warning else None)

        def is_set(_: None, reply: Any) -> None:
            if isinstance(reply, Done) and not fields.preview:
                to = "as the configuration says" if fields.unset else fields.value
                connection.log_throttled(
                    log, logging.WARNING, ("setting", name, to), "operator %s from %s set setting %s to %s; reason: %s",
                    by.name, connection.address, name, to, by.reason or "-",
                )  # fmt: skip
            answer(reply)

        self._sequencer.submit(command, is_set)
