"""docs/cloudevents.md: its program, with a broker and a worker."""

import json
from pathlib import Path
from typing import Final

import pytest

from halfmq import Client
from halfmq.cloudevents import compose_event, from_message
from tests.documents.blocks import blocks_of, in_test
from tests.documents.shell import shell
from tests.documents.test_services_page import running
from tests.support.served import Served
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
_HERE: Final = "tests/documents/test_cloudevents_page.py::test_an_event_that_comes_in_both_modes_is_handled_once"


def test_an_event_that_comes_in_both_modes_is_handled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, send, work, printed = blocks_of(_HERE)
    (tmp_path / "events.py").write_text(program.text)
    broker = Served(tmp_path / "data", tmp_path / "broker.log", "--durability", "memory")
    broker.start()
    try:
        monkeypatch.setenv("HALFMQ_URL", broker.url)
        shell(in_test(send.text, f"127.0.0.1:{broker.name_port}", tmp_path), tmp_path)
        with Client(broker.url) as mq, mq.consumer("events", group="looks") as messages:
            found = [messages.get(PATIENCE_S) for _ in range(2)]
            events = [from_message(message) for message in found if message is not None]
        assert events[0] == events[1]
        with running(work.text.strip(), tmp_path, {}) as worker:

            def said() -> str:
                return (tmp_path / "out").read_text()

            wait_until(lambda: printed.text in said(), said, unless=worker.poll)
            with Client(broker.url) as mq:
                mq.send("events", b"no event")
                mq.send("events", compose_event("events", events[0]))

            def lag() -> int:
                text = shell("halfmq group lag billing --topic events --json", tmp_path).stdout
                return int(json.loads(text)["lag"])

            wait_until(lambda: lag() == 0, said, unless=worker.poll)
        assert said().count("order.created") == 1, said()
        dead = json.loads(shell("halfmq dead list --group billing --json", tmp_path).stdout)["letters"]
        assert [letter["body"] for letter in dead] == ["no event"]
        assert dead[0]["reason"].startswith("NotACloudEvent: ")
    finally:
        broker.stop()
