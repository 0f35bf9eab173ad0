"""Baseline of ``halfmq bench tx``: a server with the codecs of the broker, but without decisions, state and storage.

It splits frames, decodes headers, encodes each half message as a log record, computes its CRC, responds, and discards the bytes.
The ratio of the broker's CPU per transaction to the baseline's is comparable across machines.

``python -m halfmq.bench.baseline`` prints its port and serves until SIGTERM.
"""

import asyncio
import json
import signal

from halfmq.bench.load import run
from halfmq.model.properties import UNIQ_KEY, find
from halfmq.model.records import MESSAGE_AT
from halfmq.model.stored_message import StoredMessage, body_crc_of, encode
from halfmq.wire.remoting.codes import RequestCode
from halfmq.wire.remoting.frame import FrameSplitter
from halfmq.wire.remoting.header import decode, encode_empty_response, encode_send_response

_HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
_NOW_MS = 1_795_246_382_304


class BaselineProtocol(asyncio.Protocol):
    """Responds to half messages and END_TRANSACTION; its only state is the next log offset."""

    def __init__(self) -> None:
        self.splitter = FrameSplitter()
        self.offset = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        answers = []
        for frame in self.splitter.feed(data):
            request = decode(frame)
            if request.code == RequestCode.SEND_MESSAGE_V2:
                answers.append(self._half(request.opaque, request.ext, request.body))
            elif not request.flag & 2:
                answers.append(encode_empty_response(request.opaque))
        if answers:
            self.transport.write(b"".join(answers))  # type: ignore[attr-defined]

    def _half(self, opaque: int, fields, body: bytes) -> bytes:  # type: ignore[no-untyped-def]
        properties = fields.properties.encode()
        unique = find(properties, UNIQ_KEY) or b""
        message = StoredMessage(
            fields.topic, fields.queue_id, 0, fields.flag, 0, fields.born_time_ms, _HOST, _NOW_MS, _HOST,
            fields.reconsume_times, 0, body, body_crc_of(body), properties,
        )  # fmt: skip
        parts = encode(message, self.offset)
        offset = self.offset
        self.offset = offset + MESSAGE_AT + sum(map(len, parts))
        return encode_send_response(opaque, b"7F00000100002A9F%016X" % offset, fields.queue_id, 0, unique)


async def serve() -> None:
    """Print ``{"port": ...}`` and serve until SIGTERM."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(BaselineProtocol, "127.0.0.1", 0)
    stopped = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    await stopped.wait()
    server.close()


if __name__ == "__main__":
    run(serve())
