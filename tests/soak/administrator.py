"""An administrator who continuously creates topics and groups, uses them, and deletes them again.

``python -m tests.soak.administrator DIRECTORY NAME LIFE RATE``. Each topic gets some plain messages, each consumer group
an offset in it; RATE of each are created and deleted a second, and about ``ALIVE_MAX`` exist at once. Leftovers of an earlier
life are deleted first. SIGTERM: delete what exists, and end.
"""

import random
import signal
import sys
import threading
from collections import deque
from typing import Final

from halfmq.cli.requests import ask
from halfmq.errors import HalfmqError
from halfmq.model import properties as names
from halfmq.model.address import Address, ServerUrl
from halfmq.model.stored_message import body_crc_of
from halfmq.testing.history.events import Answered, PlainSent
from halfmq.wire.remoting.codes import RequestCode, ResponseCode
from tests.soak.notes import Counter, Notes, now_us
from tests.soak.plan import Plan, load_plan

ALIVE_MAX: Final = 40
#: Number of messages sent to each topic.
MESSAGES: Final = 5
_TIMEOUT_S: Final = 5.0


class Refused(Exception):
    """No request of this administrator may be refused: this process ends, and the soak with it."""


class Administrator:
    def __init__(self, plan: Plan, name: str, notes: Notes) -> None:
        self._plan = plan
        self._notes = notes
        self._sent = 0
        self._url = ServerUrl((Address("127.0.0.1", plan.broker_port),))
        self._counter = Counter(plan.counter_file(name))
        #: Names that this life or an earlier one may have created.
        self._file = plan.path / f"{name}.names"
        left = self._file.read_text().split() if self._file.exists() else []
        self._alive: deque[str] = deque(left)
        self._made = max((int(one.rpartition("-")[2]) for one in left), default=0)
        self.stopping = threading.Event()

    def run(self, rate: float) -> None:
        while not self.stopping.wait(1 / rate):
            if self._plan.quiet_file.exists():
                continue
            try:
                if len(self._alive) >= ALIVE_MAX:
                    self._delete(self._alive[0])
                self._make()
            except HalfmqError:
                continue  # the broker is down: names in the file are tried again
            self._counter.add()
        while self._alive:
            self._delete(self._alive[0])

    def _make(self) -> None:
        self._made += 1
        name = f"Churn-{self._made}"
        self._alive.append(name)
        self._file.write_text("\n".join(self._alive))
        queues = str(random.Random(name).randint(1, 16))
        self._ask(
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            {"topic": name, "readQueueNums": queues, "writeQueueNums": queues, "perm": "6"},
        )
        body = b'{"groupName":"%s","retryQueueNums":1,"retryMaxTimes":16,"consumeEnable":true}' % name.encode()
        self._ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)
        self._ask(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            {"consumerGroup": name, "topic": name, "queueId": "0", "commitOffset": "0"},
        )
        for _ in range(MESSAGES):
            self._send(name)

    def _send(self, topic: str) -> None:
        self._sent += 1
        op, key, body = f"plain-{self._sent}", f"{self._notes.by}-{self._sent}", b"x" * 500
        asked = PlainSent(
            t_us=now_us(), by=self._notes.by, op=op, message=key, topic=topic, queue=0, crc=body_crc_of(body)
        )
        self._notes.write(asked)
        fields = {
            "producerGroup": "soak-administrator", "topic": topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": "4",
            "queueId": "0", "sysFlag": "0", "bornTimestamp": "1", "flag": "0", "reconsumeTimes": "0", "unitMode": "false",
            "properties": f"{names.UNIQ_KEY}\x01{key}\x02",
        }  # fmt: skip
        self._ask(RequestCode.SEND_MESSAGE, fields, body)
        self._notes.write(Answered(t_us=now_us(), by=self._notes.by, op=op, outcome="ok"))

    def _delete(self, name: str) -> None:
        self._ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": name, "cleanOffset": "true"})
        self._ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": name})
        self._alive.remove(name)
        self._file.write_text("\n".join(self._alive))

    def _ask(self, code: RequestCode, fields: dict[str, str], body: bytes = b"") -> None:
        answer = ask(self._url, code, fields, _TIMEOUT_S, body)
        if answer.code != ResponseCode.SUCCESS:
            raise Refused(f"{code.name} {fields}: {answer.code} {answer.remark}")


def main(directory: str, name: str, life: str, rate: str) -> None:
    plan = load_plan(directory)
    administrator = Administrator(plan, name, Notes(plan, f"{name}.{life}"))
    signal.signal(signal.SIGTERM, lambda *_: administrator.stopping.set())
    administrator.run(float(rate))


if __name__ == "__main__":
    main(*sys.argv[1:])
