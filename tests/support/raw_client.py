"""A client of raw frames over asyncio: it sends what the test says, valid or not, and shows the responses.

It deliberately does not use the codecs of ``halfmq.wire`` for headers, so that an error in them cannot hide: headers are
JSON of the standard library.
"""

import asyncio
import json
from typing import Any, NamedTuple

from tests.support.waiting import PATIENCE_S


class Answer(NamedTuple):
    """A response or a push: ``code``, ``opaque``, ``ext`` and ``body`` as received."""

    code: int
    opaque: int
    flag: int
    remark: str | None
    ext: dict[str, str]
    body: bytes


def frame(header: bytes, body: bytes = b"", kind: int = 0) -> bytes:
    return (
        (4 + len(header) + len(body)).to_bytes(4, "big") + (kind << 24 | len(header)).to_bytes(4, "big") + header + body
    )


def command(
    code: int,
    opaque: int,
    ext: dict[str, str] | None = None,
    body: bytes = b"",
    *,
    oneway: bool = False,
    version: int = 409,
    remark: str | None = None,
) -> bytes:
    header: dict[str, Any] = {
        "code": code,
        "language": "JAVA",
        "version": version,
        "opaque": opaque,
        "flag": 2 if oneway else 0,
    }
    if ext is not None:
        header["extFields"] = ext
    if remark is not None:
        header["remark"] = remark
    return frame(json.dumps(header).encode(), body)


def property_string(**pairs: str) -> str:
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs.items())


class RawClient:
    """One connection. ``ask`` sends a command and waits for its response; pushes are collected in ``pushes``.

    Who asks gets a ConnectionError if the broker closes the connection first.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, version: int) -> None:
        self._reader = reader
        self._writer = writer
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._asked: set[asyncio.Future[Answer]] = set()
        self._opaque = 0
        self.version = version
        self.pushes: asyncio.Queue[Answer] = asyncio.Queue()
        self.closed = asyncio.Event()
        self._task = asyncio.create_task(self._read())

    @classmethod
    async def connect(cls, port: int, *, version: int = 409) -> "RawClient":
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        return cls(reader, writer, version)

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    def expect(self, opaque: int) -> "asyncio.Future[Answer]":
        return self._waiting.setdefault(opaque, asyncio.get_running_loop().create_future())

    def next_opaque(self) -> int:
        self._opaque += 1
        return self._opaque

    async def ask(
        self,
        code: int,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
        *,
        wait_s: float = PATIENCE_S,
        version: int | None = None,
    ) -> Answer:
        if self.closed.is_set():
            raise ConnectionResetError("the connection is closed")
        opaque = self.next_opaque()
        waiting = self.expect(opaque)
        self._asked.add(waiting)
        self.write(command(code, opaque, ext, body, version=self.version if version is None else version))
        try:
            return await asyncio.wait_for(waiting, wait_s)
        finally:
            self._asked.discard(waiting)

    def tell(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> None:
        """Send a one-way request."""
        self.write(command(code, self.next_opaque(), ext, body, oneway=True, version=self.version))

    async def close(self) -> None:
        self._writer.close()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _read(self) -> None:
        try:
            while True:
                total = int.from_bytes(await self._reader.readexactly(4), "big")
                data = await self._reader.readexactly(total)
                stop = 4 + int.from_bytes(data[1:4], "big")
                header = json.loads(data[4:stop])
                answer = Answer(
                    header["code"], header["opaque"], header["flag"], header.get("remark"), header.get("extFields") or {},
                    data[stop:],
                )  # fmt: skip
                if answer.flag & 1:
                    waiting = self.expect(answer.opaque)
                    if not waiting.done():
                        waiting.set_result(answer)
                else:
                    self.pushes.put_nowait(answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            for waiting in self._asked:
                if not waiting.done():
                    waiting.set_exception(ConnectionResetError("the broker closed the connection"))
        finally:
            self.closed.set()

    # --- common requests

    async def send(
        self,
        topic: str,
        body: bytes,
        *,
        queue: int = 0,
        unique: str = "",
        group: str = "P",
        queues: int = 1,
        **properties: str,
    ) -> Answer:
        pairs = {**({"UNIQ_KEY": unique} if unique else {}), **properties}
        return await self.ask(310, send_ext(topic, group, queue, pairs, queues=queues), body)

    async def half(
        self,
        topic: str,
        body: bytes,
        *,
        unique: str,
        group: str = "P",
        queue: int = 0,
        queues: int = 1,
        **properties: str,
    ) -> Answer:
        pairs = {"TRAN_MSG": "true", "UNIQ_KEY": unique, "PGROUP": group, **properties}
        return await self.ask(310, send_ext(topic, group, queue, pairs, queues=queues, sys_flag=4), body)

    async def end(self, half: Answer, unique: str, wanted: int, *, group: str = "P", **more: str) -> Answer:
        return await self.ask(37, end_ext(half, unique, wanted, group=group, **more))

    async def pull(
        self,
        topic: str,
        offset: int = 0,
        *,
        queue: int = 0,
        group: str = "C",
        wait_ms: int = 0,
        count: int = 32,
        tags: str = "*",
    ) -> Answer:
        return await self.ask(
            11,
            pull_ext(topic, group, queue, offset, wait_ms=wait_ms, count=count, tags=tags),
            wait_s=PATIENCE_S + wait_ms / 1000,
        )

    async def heartbeat(
        self, client_id: str, *, producers: list[str] | None = None, consumers: dict[str, list[str]] | None = None
    ) -> Answer:
        body = {
            "clientID": client_id,
            "producerDataSet": [{"groupName": name} for name in producers or []],
            "consumerDataSet": [
                {
                    "groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
                    "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "unitMode": False,
                    "subscriptionDataSet": [
                        {"topic": topic, "subString": "*", "tagsSet": [], "codeSet": [], "subVersion": 1, "expressionType": "TAG"}
                        for topic in topics
                    ],
                }
                for group, topics in (consumers or {}).items()
            ],
        }  # fmt: skip
        return await self.ask(34, {}, json.dumps(body).encode())


def send_ext(
    topic: str, group: str, queue: int, pairs: dict[str, str], *, queues: int = 1, sys_flag: int = 0
) -> dict[str, str]:
    return {
        "a": group, "b": topic, "c": "TBW102", "d": str(queues), "e": str(queue), "f": str(sys_flag), "g": "1795246382304",
        "h": "0", "i": property_string(**pairs), "j": "0", "k": "false", "m": "false",
    }  # fmt: skip


def end_ext(half: Answer, unique: str, wanted: int, *, group: str = "P", **more: str) -> dict[str, str]:
    return {
        "producerGroup": group,
        "tranStateTableOffset": half.ext["queueOffset"],
        "commitLogOffset": str(int(half.ext["msgId"][-16:], 16)),
        "commitOrRollback": str(wanted),
        "fromTransactionCheck": "false",
        "msgId": unique,
        **more,
    }


def pull_ext(
    topic: str, group: str, queue: int, offset: int, *, wait_ms: int = 0, count: int = 32, tags: str = "*"
) -> dict[str, str]:
    return {
        "consumerGroup": group, "topic": topic, "queueId": str(queue), "queueOffset": str(offset), "maxMsgNums": str(count),
        "sysFlag": "6" if wait_ms else "4", "commitOffset": "0", "suspendTimeoutMillis": str(wait_ms),
        "subscription": tags, "subVersion": "0", "expressionType": "TAG",
    }  # fmt: skip
