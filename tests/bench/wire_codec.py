"""What one frame of the hot path costs, in microseconds: ``PYTHONPATH=src python tests/bench/wire_codec.py``.

The last line is the yardstick: the same header read by the JSON library alone, into dicts. Where that takes more than
0.9 the machine is slower or busy; compare the others with it.
"""

import timeit
from collections.abc import Callable

import msgspec

from halfmq.wire.remoting.frame import FrameSplitter
from halfmq.wire.remoting.header import decode, encode_send_response
from halfmq.wire.remoting.message_codec import encode_send

UNIQUE_ID = "FD000000000000000000000000000000000000240CA5FDFDB22767898C8330"
PROPERTIES = (
    f"KEYS\x01order-17\x02TRAN_MSG\x01true\x02UNIQ_KEY\x01{UNIQUE_ID}\x02WAIT\x01true\x02PGROUP\x01TXG\x02TAGS\x01TagA"
)
END = (
    '{"code":37,"extFields":{"producerGroup":"TXG","bname":"broker-a","commitLogOffset":"3996","msgId":"FD00",'
    '"tranStateTableOffset":"4","commitOrRollback":"8","transactionId":"FD00","fromTransactionCheck":"false"},"flag":2,'
    '"language":"JAVA","opaque":124,"serializeTypeCurrentRPC":"JSON","version":407}'
).replace("FD00", UNIQUE_ID)
BATCH = 32


def microseconds(work: Callable[[], object], loops: int = 20_000) -> float:
    return min(timeit.repeat(work, number=loops, repeat=15)) / loops * 1e6


def main() -> None:
    send = encode_send(
        7, group="TXG", topic="orders", queue_id=1, sys_flag=4, born_time_ms=1_795_246_382_304,
        property_string=PROPERTIES.encode(), body=bytes(1024),
    )  # fmt: skip
    send_frame = send[4:]
    header = send_frame[4 : 4 + int.from_bytes(send_frame[1:4], "big")]
    end_frame = len(END).to_bytes(4, "big") + END.encode()
    end = len(end_frame).to_bytes(4, "big") + end_frame
    read = (send + end) * (BATCH // 2)
    figures = {
        "decode half (310, 1 KiB)": microseconds(lambda: decode(send_frame)),
        "decode END_TRANSACTION (37)": microseconds(lambda: decode(end_frame)),
        "split, a frame of 32 in one read": microseconds(lambda: FrameSplitter().feed(read), 2_000) / BATCH,
        "encode the answer to a send": microseconds(
            lambda: encode_send_response(7, b"7F" * 16, 1, 4, UNIQUE_ID.encode())
        ),
        "yardstick: the half's header to dicts": microseconds(lambda: msgspec.json.decode(header)),
    }
    for name, figure in figures.items():
        print(f"{name:40} {figure:6.2f}")


if __name__ == "__main__":
    main()
