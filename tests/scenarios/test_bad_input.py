"""Bad input, as a table: what comes, the code it gets, the connection's fate, and the log unchanged byte for byte."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.support.in_process import SEGMENT_BYTES, Running, serving
from tests.support.raw_client import Answer, command, end_ext, frame, send_ext
from tests.support.waiting import soon

from halfmq.core.session import DiskSpace, apply_session
from halfmq.model.settings import BrokerSettings

ID = "AC10000100002A9F0000000000000001"
OPEN, CLOSED = "open", "closed"
#: Of the request in question.
OPAQUE = 4_711


def half_ext(**changes: str) -> dict[str, str]:
    pairs = {"TRAN_MSG": "true", "UNIQ_KEY": "F" * 32, "PGROUP": "P"}
    return {**send_ext("T", "P", 0, pairs, sys_flag=4), **changes}


class Row(NamedTuple):
    """``make(half)`` gives the bytes that are sent; ``half`` is the answer to an undecided one of group P."""

    make: Callable[[Answer], bytes]
    #: None: no answer at all.
    code: int | None
    fate: str
    remark: str = ""


def header(**keys: object) -> bytes:
    return json.dumps({"language": "JAVA", "version": 409, "opaque": OPAQUE, "flag": 0, **keys}).encode()


def without(ext: dict[str, str], name: str) -> dict[str, str]:
    return {key: value for key, value in ext.items() if key != name}


def ended(half: Answer, **changes: str) -> bytes:
    return command(37, OPAQUE, {**end_ext(half, ID, 8), **changes})


def moved(text: str, by: int) -> str:
    return str(int(text) + by)


TABLE = {
    "a frame larger than 16 MiB": Row(lambda half: (16_777_217).to_bytes(4, "big") + b"\0" * 64, None, CLOSED),
    "a frame of length 3": Row(lambda half: b"\0\0\0\3abc", None, CLOSED),
    "a negative frame length": Row(lambda half: b"\xff\xff\xff\xff" + b"\0" * 16, None, CLOSED),
    "a half frame, and nothing behind it": Row(lambda half: command(310, OPAQUE, half_ext(), b"body")[:-3], None, OPEN),
    "a header longer than its frame": Row(lambda half: b"\0\0\0\x10" + b"\0\0\0\xff" + b"\0" * 12, None, CLOSED),
    "an unknown serialisation": Row(lambda half: frame(b"{}", kind=7), None, CLOSED),
    "a header that is no JSON": Row(lambda half: frame(b"\x00\x01nonsense"), None, CLOSED),
    "a header that is a JSON list": Row(lambda half: frame(b"[]"), None, CLOSED),
    "a binary header that is cut off": Row(lambda half: frame(b"\0\x69\0", kind=1), None, CLOSED),
    "a TLS handshake": Row(lambda half: b"\x16\x03\x01\x02\x00" + bytes(40), None, CLOSED),
    "an unknown command": Row(lambda half: frame(header(code=9_999)), 3, OPEN, "request type 9999 not supported"),
    "an unknown command with a body": Row(lambda half: frame(header(code=9_999), bytes(5_000)), 3, OPEN),
    "a send without topic": Row(lambda half: command(310, OPAQUE, without(half_ext(), "b"), b"x"), 1, OPEN),
    "a send whose queue is no number": Row(lambda half: command(310, OPAQUE, half_ext(e="one"), b"x"), 1, OPEN),
    "a send without any field": Row(lambda half: frame(header(code=310), b"x"), 1, OPEN),
    "an END without offsets": Row(lambda half: command(37, OPAQUE, {"producerGroup": "P"}), 1, OPEN),
    "a pull without queue": Row(lambda half: command(11, OPAQUE, {"consumerGroup": "C", "topic": "T"}), 1, OPEN),
    "a heartbeat that is no JSON": Row(lambda half: frame(header(code=34), b"{"), 1, OPEN),
    "a batch that is cut off": Row(lambda half: command(320, OPAQUE, send_ext("T", "P", 0, {}), b"\0\0\0\x50abc"), 1, OPEN),
    "an empty batch": Row(lambda half: command(320, OPAQUE, send_ext("T", "P", 0, {}), b""), 1, OPEN),
    "a body over 4 MiB": Row(lambda half: command(310, OPAQUE, half_ext(), bytes(4_194_305)), 13, OPEN),
    "a plain body over 4 MiB": Row(
        lambda half: command(310, OPAQUE, send_ext("T", "P", 0, {"UNIQ_KEY": "E" * 32}), bytes(4_194_305)), 13, OPEN
    ),
    "properties over 32 KiB": Row(
        lambda half: command(310, OPAQUE, send_ext("T", "P", 0, {"K": "v" * 32_800}), b"x"), 13, OPEN
    ),
    "an unknown topic, none made on first use": Row(lambda half: command(310, OPAQUE, half_ext(b="Nowhere"), b"x"), 17, OPEN),
    "a route of an unknown topic": Row(lambda half: command(105, OPAQUE, {"topic": "Nowhere"}), 17, OPEN),
    "an illegal topic name": Row(lambda half: command(310, OPAQUE, half_ext(b="no way!"), b"x"), 29, OPEN),
    "a topic of the system": Row(lambda half: command(310, OPAQUE, half_ext(b="RMQ_SYS_TRANS_HALF_TOPIC"), b"x"), 16, OPEN),
    "a queue that the topic does not have": Row(lambda half: command(310, OPAQUE, half_ext(e="9"), b"x"), 29, OPEN),
    "prepared by flag, not by property": Row(
        lambda half: command(310, OPAQUE, send_ext("T", "P", 0, {}, sys_flag=4), b"x"), 13, OPEN
    ),
    "an END with another half's index": Row(
        lambda half: ended(half, tranStateTableOffset=moved(half.ext["queueOffset"], 7)), 1, OPEN
    ),
    "an END with a wrong log offset": Row(
        lambda half: ended(half, commitLogOffset=moved(end_ext(half, ID, 8)["commitLogOffset"], 8)), 1, OPEN
    ),
    "an END with an offset far behind the log": Row(lambda half: ended(half, commitLogOffset=str(1 << 60)), 1, OPEN),
    "an END with a negative offset": Row(lambda half: ended(half, commitLogOffset="-1", tranStateTableOffset="-1"), 1, OPEN),
    "an END of another group": Row(lambda half: ended(half, producerGroup="Q"), 1, OPEN),
    "an END of an id never prepared": Row(lambda half: ended(half, msgId="0" * 32), 1, OPEN),
    "an END that wants 4": Row(lambda half: ended(half, commitOrRollback="4"), 1, OPEN, "commitOrRollback field wrong"),
    "a view of an offset that somebody made up": Row(lambda half: command(33, OPAQUE, {"offset": "77"}), 1, OPEN),
    "a view of an undecided half": Row(
        lambda half: command(33, OPAQUE, {"offset": end_ext(half, ID, 8)["commitLogOffset"]}), 1, OPEN
    ),
    "an undecided half sent back": Row(
        lambda half: command(
            36, OPAQUE, {"offset": end_ext(half, ID, 8)["commitLogOffset"], "group": "C", "delayLevel": "1"}
        ),
        1,
        OPEN,
    ),
    "a pull of the half topic": Row(
        lambda half: command(
            11, OPAQUE,
            {"consumerGroup": "C", "topic": "RMQ_SYS_TRANS_HALF_TOPIC", "queueId": "0", "queueOffset": "0", "maxMsgNums": "1"},
        ),
        16, OPEN,
    ),
}  # fmt: skip


async def prepared(running: Running) -> Answer:
    """A topic, a consumer group and one undecided half, by a client that leaves again."""
    client = await running.client()
    await client.ask(17, {"topic": "T", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"})
    await client.heartbeat("me", consumers={"C": ["T"]})
    half = await client.half("T", b"undecided", unique=ID)
    assert half.code == 0
    return half


async def still_undecided(running: Running, half: Answer) -> bool:
    """The broker is well: the half can be committed, and comes out whole."""
    client = await running.client()
    assert (await client.pull("T")).code == 19
    assert (await client.end(half, ID, 8)).ext["HMQ_VERDICT"] == "COMMITTED"
    pulled = await client.pull("T")
    return pulled.code == 0 and b"undecided" in pulled.body


@pytest.mark.parametrize("row", TABLE.values(), ids=TABLE.keys())
async def test_bad_input_gets_its_code_and_leaves_the_log_as_it_was(tmp_path: Path, row: Row) -> None:
    settings = BrokerSettings(auto_create_topics=False)
    async with serving(tmp_path, settings=settings, segment_bytes=SEGMENT_BYTES) as running:
        half = await prepared(running)
        before = running.log_bytes()
        client = await running.client()
        client.write(row.make(half))
        if row.code is None:
            if row.fate == CLOSED:
                await soon(client.closed.wait())
            else:  # what comes later, on another connection, is answered
                assert (await (await running.client()).ask(105, {"topic": "T"})).code == 0
            assert not client.expect(OPAQUE).done()
        else:
            answer = await soon(client.expect(OPAQUE))
            assert answer.code == row.code, answer
            assert row.remark in (answer.remark or "")
        assert client.closed.is_set() == (row.fate == CLOSED)
        if row.fate == OPEN and row.code is not None:
            assert (await client.ask(105, {"topic": "T"})).code == 0
        assert running.log_bytes() == before
        assert await still_undecided(running, half)


@pytest.mark.parametrize("code", [310, 320, 37, 11, 33, 36, 9_999])
async def test_oneway_request_is_never_answered(tmp_path: Path, code: int) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        client.write(command(code, OPAQUE, {"nothing": "useful"}, oneway=True))
        assert (await client.ask(105, {"topic": "TBW102"})).code == 0, "answered by the gateway"
        assert (await client.send("T", b"x", unique=ID)).code == 0, "answered by the sequencer"
        assert not client.expect(OPAQUE).done()


async def test_full_disk_refuses_new_messages_and_lets_verdicts_go_on(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        half = await prepared(running)
        apply_session(running.state, DiskSpace(True))
        before = running.log_bytes()
        client = await running.client()
        assert (await client.send("T", b"x", unique="1" * 32)).code == 14
        assert (await client.half("T", b"x", unique="2" * 32)).code == 14
        assert (await client.ask(320, send_ext("T", "P", 0, {}), batch(b"x", b"y"))).code == 14
        assert running.log_bytes() == before
        assert (await client.half("T", b"undecided", unique=ID)).code == 0, "sent again: it is stored already"
        assert running.log_bytes() == before
        assert (await client.end(half, ID, 8)).ext["HMQ_VERDICT"] == "COMMITTED"
        apply_session(running.state, DiskSpace(False))
        assert (await client.send("T", b"x", unique="1" * 32)).code == 0


def batch(*bodies: bytes) -> bytes:
    entries = b""
    for body in bodies:
        size = 22 + len(body)
        entries += size.to_bytes(4, "big") + bytes(12) + len(body).to_bytes(4, "big") + body + bytes(2)
    return entries
