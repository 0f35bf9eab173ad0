"""The bare sketch: what half + end cost when nothing is decided, stored or remembered.

Same frames, same codecs of the standard library and msgspec, an asyncio (or uvloop) server that answers each half
with a send response and each end with nothing. It is the yardstick of `halfmq bench tx`: the ratio of the broker's CPU
per transaction to the sketch's, in one run, holds on any machine.

Run alone: ``python -m halfmq.bench.sketch --port 0`` prints the port and serves until SIGTERM, then prints its CPU seconds.
"""

import argparse
import asyncio
import json
import resource
import signal
import struct
import sys
from zlib import crc32

import msgspec


class _Fields(msgspec.Struct, gc=False):
    a: str = ""
    b: str = ""
    e: str = "0"
    f: str = "0"
    g: str = "0"
    h: str = "0"
    i: str = ""
    producerGroup: str = ""  # noqa: N815 - the protocol's name
    tranStateTableOffset: str = "0"  # noqa: N815
    commitLogOffset: str = "0"  # noqa: N815
    commitOrRollback: str = "0"  # noqa: N815
    msgId: str = ""  # noqa: N815


class _Header(msgspec.Struct, gc=False):
    opaque: int
    code: int = 0
    flag: int = 0
    extFields: _Fields | None = None  # noqa: N815


_decode = msgspec.json.Decoder(_Header).decode
_MESSAGE = struct.Struct(">IIIiiqqiq8sq8siqi")


class SketchProtocol(asyncio.Protocol):
    """Half: decode, sum the body, pack a stored message, answer. End: decode. No state beyond a counter."""

    def __init__(self) -> None:
        self.pending = b""
        self.offset = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        data = self.pending + data if self.pending else data
        at = 0
        end = len(data)
        answers = []
        while end - at >= 4:
            stop = at + 4 + int.from_bytes(data[at : at + 4], "big")
            if stop > end:
                break
            header_end = at + 8 + int.from_bytes(data[at + 5 : at + 8], "big")
            header = _decode(data[at + 8 : header_end])
            if header.code == 310:
                fields = header.extFields
                assert fields is not None
                body = data[header_end:stop]
                properties = fields.i.encode()
                offset = self.offset
                _MESSAGE.pack(
                    0, 0, crc32(body) & 0x7FFFFFFF, int(fields.e), int(fields.h), offset, offset, int(fields.f),
                    int(fields.g), b"\0" * 8, 0, b"\0" * 8, 0, 0, len(body),
                )  # fmt: skip
                self.offset = offset + 91 + len(body) + len(properties)
                text = (
                    f'{{"code":0,"flag":1,"opaque":{header.opaque},"extFields":{{"queueId":"{fields.e}",'
                    f'"queueOffset":"{offset}","msgId":"7F00000100002A9F{offset:016X}"}}}}'
                ).encode()
                answers.append((len(text) + 4).to_bytes(4, "big") + len(text).to_bytes(4, "big") + text)
            elif header.code == 37 and not header.flag & 2:
                text = f'{{"code":0,"flag":1,"opaque":{header.opaque}}}'.encode()
                answers.append((len(text) + 4).to_bytes(4, "big") + len(text).to_bytes(4, "big") + text)
            at = stop
        self.pending = data[at:]
        if answers:
            self.transport.write(b"".join(answers))  # type: ignore[attr-defined]


async def serve(port: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(SketchProtocol, "127.0.0.1", port)
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    await stopped.wait()
    server.close()
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({"cpu_seconds": used.ru_utime + used.ru_stime}), flush=True)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--port", type=int, default=0)
    port = arguments.parse_args().port
    if sys.platform != "win32":
        try:
            import uvloop

            uvloop.install()
        except ImportError:
            pass
    asyncio.run(serve(port))


if __name__ == "__main__":
    main()
