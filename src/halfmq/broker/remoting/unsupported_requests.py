"""Logs requests for unsupported features: RocketMQ's clients retry them for ever, and log little or nothing themselves.

One line for each (client's address, feature), repeated after ten minutes (``LogThrottle``), and at most one line a second in all, so that
invented commands or names cannot fill the log.
"""

import logging
from collections.abc import Callable, Hashable
from typing import Any, Final

from halfmq.core.state import Subscription
from halfmq.runtime.log_throttle import LogThrottle
from halfmq.wire.remoting.header import Request

log = logging.getLogger("halfmq.unsupported_requests")

#: Minimum interval between two lines, seconds.
GAP_S: Final = 1.0
#: Maximum number of characters quoted from a client.
_CHARS_MAX: Final = 100
#: Commands of RocketMQ 5 that its consumers send, by name.
_NAMES: Final = {
    200_050: "POP_MESSAGE",
    200_051: "ACK_MESSAGE",
    200_052: "PEEK_MESSAGE",
    200_053: "CHANGE_MESSAGE_INVISIBLETIME",
    200_054: "NOTIFICATION",
    200_055: "POLLING_INFO",
    200_151: "BATCH_ACK_MESSAGE",
}


class UnsupportedRequests:
    """Logs requests of clients for features that this broker does not support."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock``: monotonic seconds, as ``loop.time``."""
        self._clock = clock
        self._throttle = LogThrottle(clock)
        self._said_at = clock() - GAP_S

    def command(self, peer: str, request: Request[Any]) -> None:
        """A command without a handler. If it belongs to POP, consumers must be configured to pull."""
        if not self._is_due((_host(peer), request.code)):
            return
        ext = request.ext if isinstance(request.ext, dict) else {}
        group = ext.get("consumerGroup") or ext.get("producerGroup") or ext.get("group") or "unknown"
        name = _NAMES.get(request.code)
        log.warning(
            "client %s, group %s: command %d%s is not supported%s",
            peer, _short(group), request.code, f" ({name})" if name else "",
            "; configure the consumer to pull (setClientRebalance(true), the default)" if name else "",
        )  # fmt: skip

    def mode(self, peer: str, group: str, topic: str, mode: str) -> None:
        """A consumer group with an unsupported consume mode."""
        if self._is_due((_host(peer), _short(group), _short(topic))):
            log.warning(
                "client %s, group %s: consuming topic %s in mode %s is not supported (command 401); it continues in PULL mode",
                peer, _short(group), _short(topic), _short(mode),
            )  # fmt: skip

    def subscription(self, client_id: str, group: str, subscription: Subscription) -> None:
        """A subscription with an unsupported expression type."""
        topic, expression, expression_type, _ = subscription
        if self._is_due((_short(group), _short(topic))):
            log.warning(
                "client %s, group %s: it subscribes to topic %s by %s %r and gets nothing: only tags are supported",
                _short(client_id), _short(group), _short(topic), _short(expression_type), _short(expression),
            )  # fmt: skip

    def tls(self, peer: str) -> None:
        """A client that uses TLS."""
        if self._is_due((_host(peer), "TLS")):
            log.warning(
                "client %s starts a TLS handshake, which this port does not support: connect without TLS "
                "(Java: -Dtls.enable=false, or setUseTLS(false))",
                peer,
            )  # fmt: skip

    def _is_due(self, what: Hashable) -> bool:
        now = self._clock()
        if now - self._said_at < GAP_S or not self._throttle.is_due(what):
            return False
        self._said_at = now
        return True


def _host(peer: str) -> str:
    return peer.rpartition(":")[0]


def _short(text: object) -> str:
    return str(text)[:_CHARS_MAX]
