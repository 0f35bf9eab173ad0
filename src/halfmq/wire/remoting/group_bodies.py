"""JSON bodies of consumer groups: members (38), queue locks (41, 42), subscription checks (46), queue assignments (400, 401)."""

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, TypeVar

from halfmq.errors import ProtocolError
from halfmq.wire.remoting import java_json
from halfmq.wire.remoting.heartbeat import Subscription, read_subscription, write_subscription

T = TypeVar("T")

#: ``MessageRequestMode`` of clients that pull.
PULL_MODE: Final = "PULL"


class MessageQueue(NamedTuple):
    """A queue of a broker."""

    topic: str
    broker_name: str
    queue_id: int


class LockBody(NamedTuple):
    """41 and 42: the queues that the client locks or unlocks."""

    group: str
    client_id: str
    queues: tuple[MessageQueue, ...]


class ConfigCheck(NamedTuple):
    """46: a subscription to validate."""

    client_id: str
    group: str
    subscription: Subscription


class AssignmentQuery(NamedTuple):
    """400: a request for the queues that are assigned to the client."""

    topic: str
    group: str
    client_id: str
    strategy: str
    message_model: str


class ModeRequest(NamedTuple):
    """401: a request to change the consumption mode of a topic."""

    topic: str
    group: str
    mode: str


def _read_request(body: bytes, what: str, shape: Callable[[Any], T]) -> T:
    return _shaped(java_json.loads_request(body), what, shape)


def _read(body: bytes, what: str, shape: Callable[[Any], T]) -> T:
    return _shaped(java_json.loads(body), what, shape)


def _shaped(data: Any, what: str, shape: Callable[[Any], T]) -> T:
    try:
        return shape(data)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise ProtocolError(f"{what} cannot be read: {error!r}") from error


def encode_member_list(client_ids: Iterable[str]) -> bytes:
    """Response body of 38."""
    return java_json.dumps({"consumerIdList": list(client_ids)})


def decode_member_list(body: bytes) -> tuple[str, ...]:
    """Response body of 38: client ids. Raises ProtocolError."""
    return _read(body, "a list of members", lambda data: tuple(str(member) for member in data["consumerIdList"]))


def encode_lock_request(lock: LockBody) -> bytes:
    """Request body of 41 and 42."""
    return java_json.dumps(
        {
            "clientId": lock.client_id,
            "consumerGroup": lock.group,
            "mqSet": [queue_object(queue) for queue in lock.queues],
            "onlyThisBroker": False,
        }
    )


def decode_lock_request(body: bytes) -> LockBody:
    """Request body of 41 and 42. Raises ProtocolError."""
    return _read_request(
        body,
        "a request for queue locks",
        lambda data: LockBody(
            str(data["consumerGroup"]), str(data["clientId"]), tuple(map(read_queue, data.get("mqSet") or ()))
        ),
    )


def encode_lock_response(locked: Iterable[MessageQueue]) -> bytes:
    """Response body of 41: the queues that are locked now."""
    return java_json.dumps({"lockOKMQSet": [queue_object(queue) for queue in locked]})


def decode_lock_response(body: bytes) -> tuple[MessageQueue, ...]:
    """Response body of 41. Raises ProtocolError."""
    return _read(body, "an answer to a queue lock", lambda data: tuple(map(read_queue, data.get("lockOKMQSet") or ())))


def encode_config_check(check: ConfigCheck) -> bytes:
    """Request body of 46."""
    return java_json.dumps(
        {
            "clientId": check.client_id,
            "group": check.group,
            "namespace": "",
            "subscriptionData": write_subscription(check.subscription),
        }
    )


def decode_config_check(body: bytes) -> ConfigCheck:
    """Request body of 46. Raises ProtocolError."""
    return _read_request(
        body,
        "a check of a subscription",
        lambda data: ConfigCheck(
            str(data["clientId"]), str(data["group"]), read_subscription(data["subscriptionData"])
        ),
    )


def decode_assignment_query(body: bytes) -> AssignmentQuery:
    """Request body of 400. Raises ProtocolError."""
    return _read_request(
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


def encode_assignments(queues: Iterable[MessageQueue] | None) -> bytes:
    """Response body of 400. None: no assignment; the client keeps its queues and asks again."""
    if queues is None:
        return java_json.dumps({})
    return java_json.dumps(
        {"messageQueueAssignments": [{"messageQueue": queue_object(queue), "mode": PULL_MODE} for queue in queues]}
    )


def decode_mode_request(body: bytes) -> ModeRequest:
    """Request body of 401; without a mode it is PULL, as in RocketMQ. Raises ProtocolError."""
    return _read(
        body,
        "a request for a mode",
        lambda data: ModeRequest(str(data["topic"]), str(data["consumerGroup"]), str(data.get("mode") or PULL_MODE)),
    )


def queue_object(queue: MessageQueue) -> dict[str, object]:
    """The JSON object of a queue, with keys in RocketMQ's order."""
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}


def read_queue(item: Any) -> MessageQueue:
    """Inverse of ``queue_object``. The caller handles TypeError, KeyError, ValueError and the like."""
    return MessageQueue(str(item["topic"]), str(item["brokerName"]), int(item["queueId"]))
