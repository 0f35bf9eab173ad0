"""A small store with records of every kind, for tests of readers and tools."""

from pathlib import Path

from halfmq.store.checkpoint import Slot, write_checkpoint, write_snapshot
from tests.support.store_writer import StoreWriter

#: Contents of ``sample_store``: visible messages, halves, and those undecided at its end.
VISIBLE = 351
HALVES = 60
UNDECIDED = 9


def properties(number: int, *, tx_id: str = "", keys: str = "") -> bytes:
    pairs = [f"UNIQ_KEY\x01m{number}\x02", "PGROUP\x01writers\x02"]
    if tx_id:
        pairs.append(f"HMQ_TX_ID\x01{tx_id}\x02")
    if keys:
        pairs.append(f"KEYS\x01{keys}\x02")
    return "".join(pairs).encode()


def sample_store(directory: Path) -> StoreWriter:
    """Two topics over several segments of 64 KiB; transactions of two halves: committed, rolled back, copied forward, undecided."""
    writer = StoreWriter(directory)
    writer.topic("orders")
    writer.topic("points")
    left_open = {}
    for turn in range(30):
        tx_id = f"tx{turn}"
        for number in range(10):
            keys = f"k{number} common" if number % 3 == 0 else ""
            writer.send("orders", number % 4, b"x" * 300, properties(turn * 10 + number, keys=keys))
        halves = writer.prepare(
            tx_id,
            [
                ("orders", 0, b"h" * 300, properties(1_000 + turn, tx_id=tx_id)),
                ("points", 1, b"p", properties(2_000 + turn, tx_id=tx_id, keys="half")),
            ],
        )
        if turn % 3 == 0:
            writer.roll_back(tx_id, halves)
        elif turn % 3 == 1:
            writer.commit(tx_id, halves)
        else:
            left_open[turn] = halves
        writer.tick(5)
        writer.delayed("points", 2, b"later", properties(3_000 + turn, keys="delayed"))
    writer.commit("tx2", left_open.pop(2))  # its halves are in an older segment
    writer.publish()
    return writer


def add_checkpoint(writer: StoreWriter) -> int:
    """A checkpoint at the end of the log, with a meaningless snapshot. Returns its position."""
    position = writer.publish()
    crc = write_snapshot(writer.disk, writer.shard / "snapshots", writer.store_id, 1, position, [b"state"])
    write_checkpoint(writer.disk, writer.shard / "checkpoint", writer.store_id, Slot(1, 1, position, crc))
    return position
