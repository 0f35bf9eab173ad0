"""A message keeps its tag on every way into its queue: a consumer that filters is given what it asked for, and nothing else.

Messages of every kind are sent with two tags. Then the log may be trimmed over them, so that what is undecided or delayed is
copied, and power may be lost, before they come to be visible.
"""

from typing import Final

import pytest
from tests.simulation.world import DATA, HandClock, Life
from tests.support.raw_client import Answer, end_ext, pull_ext, send_ext

from halfmq.broker.config import BrokerConfig
from halfmq.model.settings import BrokerSettings
from halfmq.model.stored_message import decode
from halfmq.testing.faulty_disk import FaultyDisk

#: Two tags and none, in an order in which neither is always the last.
TAGS: Final = ("red", "blue", "", "red", "blue", "red", "")
KINDS: Final = ("plain", "delayed", "half", "delayed half")
COMMIT: Final = 8
LONGER_THAN_THE_DELAY_MS: Final = 70_000


class House:
    def __init__(self) -> None:
        self.disk = FaultyDisk(1)
        self.clock = HandClock()
        self.config = BrokerConfig(
            data=DATA, port=0, name_port=0, segment_bytes=1 << 16, checkpoint_interval_ms=1_000, retention_check_ms=500,
            retention_bytes=100_000, disk_reserve_bytes=0,
            dedup_window_ms=0, settings=BrokerSettings(check_immunity_ms=600_000),
        )  # fmt: skip
        self.start()

    def start(self) -> None:
        self.life = Life(self.disk, self.clock, self.disk.crashes + 1, self.config)
        self.life.start()
        self.life.settle()
        self.peer = self.life.connect()

    def ask(self, code: int, ext: dict[str, str], body: bytes = b"") -> Answer:
        opaque = self.peer.send(code, ext, body)
        self.life.settle()
        return self.peer.answers.pop(opaque)

    def send(self, kind: str, text: str, tag: str) -> Answer:
        half = kind.endswith("half")
        pairs = {"UNIQ_KEY": text.replace(" ", "-")}
        pairs |= {"TAGS": tag} if tag else {}
        pairs |= {"TRAN_MSG": "true", "PGROUP": "P"} if half else {}
        pairs |= {"DELAY": "5"} if kind.startswith("delayed") else {}
        answer = self.ask(310, send_ext("T", "P", 0, pairs, sys_flag=4 if half else 0), text.encode())
        assert answer.code == 0, answer
        return answer

    def commit(self, text: str, half: Answer) -> None:
        assert self.ask(37, end_ext(half, text.replace(" ", "-"), COMMIT)).code == 0

    def trim(self) -> None:
        """Until nothing of what was sent so far lies in a segment that is kept."""
        sent_until = self.life.state.log_end
        for number in range(200):
            if self.life.state.log_start > sent_until:
                return
            assert self.ask(310, send_ext("Pad", "P", 0, {"UNIQ_KEY": f"pad{number}"}), bytes(4_000)).code == 0
            self.pass_time(100)
        raise AssertionError("the log was not trimmed")

    def pass_time(self, span_ms: int) -> None:
        for _ in range(max(1, span_ms // 5_000)):
            self.clock.now_ms += min(span_ms, 5_000)
            self.life.settle()

    def pulled(self, tags: str) -> list[str]:
        texts, offset = [], 0
        while True:
            answer = self.ask(11, pull_ext("T", "readers", 0, offset, tags=tags))
            following = int(answer.ext["nextBeginOffset"])
            at = 0
            while at < len(answer.body):
                message, _, size = decode(answer.body, at)
                texts.append(message.body.decode())
                at += size
            if answer.code != 0 and following <= offset:
                return sorted(texts)
            offset = following


@pytest.mark.parametrize("restarts", [False, True], ids=["one life", "a power loss in between"])
@pytest.mark.parametrize("trims", [False, True], ids=["kept", "trimmed over"])
def test_who_filters_is_given_what_has_the_tag(trims: bool, restarts: bool) -> None:
    house = House()
    sent: dict[str, list[str]] = {"red": [], "blue": [], "": []}
    halves = {}
    # What is visible at once would be gone behind a trim: it is sent afterwards.
    for kind in KINDS[1:] if trims else KINDS:
        for number, tag in enumerate(TAGS):
            text = f"{kind} {tag} {number}"
            sent[tag].append(text)
            answer = house.send(kind, text, tag)
            if kind == "delayed half":
                house.commit(text, answer)
            elif kind == "half":
                halves[text] = answer
    if trims:
        house.trim()
    if restarts:
        house.disk.crash()
        house.start()
    for text, answer in halves.items():
        house.commit(text, answer)
    house.pass_time(LONGER_THAN_THE_DELAY_MS)
    assert house.pulled("red") == sorted(sent["red"])
    assert house.pulled("blue") == sorted(sent["blue"])
    assert house.pulled("red || blue") == sorted(sent["red"] + sent["blue"])
    assert house.pulled("*") == sorted(text for texts in sent.values() for text in texts)
    assert house.pulled("green") == []
