"""Rights on what the bodies of some requests name, for ``services.access``. Each reads the body as the command's handler does."""

from collections.abc import Iterator

from halfmq.broker.services.access import CLIENT_INNER_PRODUCER, Asked, InBody
from halfmq.model.users import Right, Scope
from halfmq.wire.remoting.group_bodies import (
    decode_assignment_query,
    decode_config_check,
    decode_lock_request,
    decode_mode_request,
)
from halfmq.wire.remoting.heartbeat import decode_heartbeat


def _heartbeat(body: bytes) -> Iterator[Asked]:
    """Membership in a producer group brings its checks, which contain bodies."""
    heartbeat = decode_heartbeat(body)
    for group in heartbeat.producer_groups:
        if (
            group == CLIENT_INNER_PRODUCER
        ):  # every Java client joins it; nothing can be prepared in it without a right on it
            continue
        yield Asked(Right.SEND, Scope.GROUP, group)
    for data in heartbeat.consumer_groups:
        yield Asked(Right.CONSUME, Scope.GROUP, data.group)
        for subscription in data.subscriptions:
            yield Asked(Right.CONSUME, Scope.TOPIC, subscription.topic)


def _lock(body: bytes) -> Iterator[Asked]:
    lock = decode_lock_request(body)
    yield Asked(Right.CONSUME, Scope.GROUP, lock.group)
    for topic in {queue.topic for queue in lock.queues}:
        yield Asked(Right.CONSUME, Scope.TOPIC, topic)


def _config_check(body: bytes) -> Iterator[Asked]:
    check = decode_config_check(body)
    yield Asked(Right.CONSUME, Scope.GROUP, check.group)
    yield Asked(Right.CONSUME, Scope.TOPIC, check.subscription.topic)


def _assignment(body: bytes) -> Iterator[Asked]:
    query = decode_assignment_query(body)
    yield Asked(Right.CONSUME, Scope.GROUP, query.group)
    yield Asked(Right.CONSUME, Scope.TOPIC, query.topic)


def _mode(body: bytes) -> Iterator[Asked]:
    request = decode_mode_request(body)
    yield Asked(Right.ADMINISTER, Scope.GROUP, request.group)
    yield Asked(Right.ADMINISTER, Scope.TOPIC, request.topic)


_CONSUMED = ((Right.CONSUME, Scope.GROUP), (Right.CONSUME, Scope.TOPIC))
IN_HEARTBEAT = InBody(((Right.SEND, Scope.GROUP), *_CONSUMED), _heartbeat)
IN_LOCK = InBody(_CONSUMED, _lock)
IN_CONFIG_CHECK = InBody(_CONSUMED, _config_check)
IN_ASSIGNMENT = InBody(_CONSUMED, _assignment)
IN_MODE = InBody(((Right.ADMINISTER, Scope.GROUP), (Right.ADMINISTER, Scope.TOPIC)), _mode)
