"""JSON bodies of consumer groups: members (38), queue locks (41, 42), the check of a subscription (46), queues (400, 401)."""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from halfmq.errors import ProtocolError
from halfmq.wire.remoting import java_json
from halfmq.wire.remoting.heartbeat import Subscription, read_subscription, write_subscription

#: ``MessageRequestMode`` of who pulls.
PULL_MODE: Final = "PULL"


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


class AssignmentQuery(NamedTuple):
    """400: which queues of the topic are this client's?"""

    topic: str
    group: str
    client_id: str
    strategy: str
    message_model: str


class ModeRequest(NamedTuple):
    """401: consume the topic in this mode from now on."""

    topic: str
    group: str
    mode: str


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


def decode_assignment_query(body: bytes) -> AssignmentQuery:
    """Raises ProtocolError: not the body of 400."""
    asked: AssignmentQuery = _read(
        body,
        "a question for queues",
        lambda data: AssignmentQuery(
            str(data["topic"]),
            str(data["consumerGroup"]),
            str(data["clientId"]),
            str(data.get("strategyName") or ""),
            str(data.get("messageModel") or ""),
        ),
    )
    return asked


def encode_assignments(queues: Iterable[MessageQueue] | None) -> bytes:
    """None: not known; the client keeps what it has and asks again."""
    if queues is None:
        return java_json.dumps({})
    return java_json.dumps(
        {"messageQueueAssignments": [{"messageQueue": queue_object(queue), "mode": PULL_MODE} for queue in queues]}
    )


def decode_mode_request(body: bytes) -> ModeRequest:
    """Raises ProtocolError: not the body of 401. The mode of one that says none is RocketMQ's default, PULL."""
    asked: ModeRequest = _read(
        body,
        "a request for a mode",
        lambda data: ModeRequest(str(data["topic"]), str(data["consumerGroup"]), str(data.get("mode") or PULL_MODE)),
    )
    return asked


def queue_object(queue: MessageQueue) -> dict[str, object]:
    """A queue as RocketMQ writes it, keys in its order."""
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}


def read_queue(item: Any) -> MessageQueue:
    """For callers that catch what a wrong shape raises."""
    return MessageQueue(str(item["topic"]), str(item["brokerName"]), int(item["queueId"]))
