"""The lines of FastStream's log of this broker."""

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from faststream._internal.logger import DefaultLoggerStorage, make_logger_state
from faststream._internal.logger.logging import get_broker_logger

if TYPE_CHECKING:
    from faststream._internal.basic_types import LoggerProto
    from faststream._internal.context import ContextRepo

_MESSAGE_ID_CHARS = 32  # RocketMQ's unique ids


class LogFormat(DefaultLoggerStorage):
    """Columns as wide as the longest topic and group."""

    def __init__(self) -> None:
        super().__init__()
        self._topic_chars = self._group_chars = 4

    def register_subscriber(self, params: dict[str, Any]) -> None:
        self._topic_chars = max(self._topic_chars, len(params.get("topic", "")))
        self._group_chars = max(self._group_chars, len(params.get("group", "")))

    def get_logger(self, *, context: "ContextRepo") -> "LoggerProto":
        logger = self._get_logger_ref()
        if logger is None:
            logger = get_broker_logger(
                name="halfmq",
                default_context={"topic": "", "group": ""},
                message_id_ln=_MESSAGE_ID_CHARS,
                fmt=f"%(asctime)s %(levelname)-8s - %(topic)-{self._topic_chars}s | %(group)-{self._group_chars}s | "
                f"%(message_id)-{_MESSAGE_ID_CHARS}s - %(message)s",
                context=context,
                log_level=self.logger_log_level,
            )
            self._logger_ref.add(logger)
        return logger


make_state = partial(make_logger_state, default_storage_cls=LogFormat)
log = logging.getLogger("faststream_halfmq")
