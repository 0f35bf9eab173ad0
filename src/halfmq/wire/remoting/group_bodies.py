"""JSON bodies of consumer groups: member lists (38), queue locks (41, 42), the check of a subscription (46)."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from halfmq.errors import ProtocolError
from halfmq.wire.remoting import java_json
from halfmq.wire.remoting.heartbeat import Subscription, read_subscription, write_subscription


class MessageQueue(NamedTuple):
    topic: str
    broker_name: str
    queue_id: int


class LockBody(NamedTuple):
    """41 and 42: these queues, for this client."""

    group: str
    client_id: str
    queues: tuple[MessageQueue, ...]


class ConfigCheck(NamedTuple):
    """46: would the broker take this subscription?"""

    client_id: str
    group: str
    subscription: Subscription


def _read(body: bytes, what: str, shape: Any) -> Any:
    data = java_json.loads(body)
    try:
        return shape(data)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise ProtocolError(f"{what} cannot be read: {error!r}") from error


def encode_member_list(client_ids: Iterable[str]) -> bytes:
    return java_json.dumps({"consumerIdList": list(client_ids)})


def decode_member_list(body: bytes) -> tuple[str, ...]:
    """Raises ProtocolError: not a member list."""
    members: tuple[str, ...] = _read(
        body, "a list of members", lambda data: tuple(str(member) for member in data["consumerIdList"])
    )
    return members


def encode_lock_request(lock: LockBody) -> bytes:
    return java_json.dumps(
        {
            "clientId": lock.client_id,
            "consumerGroup": lock.group,
            "mqSet": [queue_object(queue) for queue in lock.queues],
            "onlyThisBroker": False,
        }
    )


def decode_lock_request(body: bytes) -> LockBody:
    """Raises ProtocolError: not the body of 41 or 42."""
    lock: LockBody = _read(
        body,
        "a request for queue locks",
        lambda data: LockBody(
            str(data["consumerGroup"]), str(data["clientId"]), tuple(map(read_queue, data.get("mqSet") or ()))
        ),
    )
    return lock


def encode_lock_response(locked: Iterable[MessageQueue]) -> bytes:
    return java_json.dumps({"lockOKMQSet": [queue_object(queue) for queue in locked]})


def decode_lock_response(body: bytes) -> tuple[MessageQueue, ...]:
    """Raises ProtocolError: not the answer to 41."""
    queues: tuple[MessageQueue, ...] = _read(
        body, "an answer to a queue lock", lambda data: tuple(map(read_queue, data.get("lockOKMQSet") or ()))
    )
    return queues


def encode_config_check(check: ConfigCheck) -> bytes:
    return java_json.dumps(
        {
            "clientId": check.client_id,
            "group": check.group,
            "namespace": "",
            "subscriptionData": write_subscription(check.subscription),
        }
    )


def decode_config_check(body: bytes) -> ConfigCheck:
    """Raises ProtocolError: not the body of 46."""
    check: ConfigCheck = _read(
        body,
        "a check of a subscription",
        lambda data: ConfigCheck(
            str(data["clientId"]), str(data["group"]), read_subscription(data["subscriptionData"])
        ),
    )
    return check


def queue_object(queue: MessageQueue) -> dict[str, object]:
    """A queue as RocketMQ writes it, keys in its order."""
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}


def read_queue(item: Any) -> MessageQueue:
    """For callers that catch what a wrong shape raises."""
    return MessageQueue(str(item["topic"]), str(item["brokerName"]), int(item["queueId"]))
