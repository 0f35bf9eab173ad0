"""Transactions with every outcome, sent over raw frames, and the rows that ``view=transactions`` and ``view=half`` must have of them."""

from typing import Any
from zlib import crc32

from tests.support.half_batches import PREPARE_BATCH, QueryRun, messages
from tests.support.raw_client import RawClient

COMMIT, ROLL_BACK = 8, 12
RESOLVE = 29_004
TOPIC = "orders"

#: (outcome, decided_by, halves, messages, topics) by transaction id.
TRANSACTIONS: dict[str, tuple[str, str | None, int, int | None, list[str]]] = {
    "committed": ("COMMITTED", "producer", 1, 1, ["orders"]),
    "rolled-back": ("ROLLED_BACK", "producer", 1, None, ["orders"]),
    "undecided": ("UNDECIDED", None, 1, 1, ["orders"]),
    "checked": ("COMMITTED", "check", 1, 1, ["orders"]),
    "marker": ("ROLLED_BACK", "marker", 1, None, ["orders"]),
    "operator": ("COMMITTED", "operator", 1, 1, ["orders"]),
    "two": ("COMMITTED", "producer", 2, 2, ["orders", "loyalty"]),
    "two-rolled-back": ("ROLLED_BACK", "producer", 2, None, ["orders", "loyalty"]),
    "two-undecided": ("UNDECIDED", None, 2, 2, ["orders", "loyalty"]),
    "batches": ("COMMITTED", "producer", 2, 20, ["orders"]),
    "batches-undecided": ("UNDECIDED", None, 2, 20, ["orders"]),
    # Attempt 0.1 won with 5 + 7 messages, attempt 0.2 lost.
    "q1:0:r1": ("COMMITTED", "query", 3, 12, ["orders"]),
    "q1:1:r1": ("UNDECIDED", None, 2, 9, ["orders"]),
}
#: Number of undecided messages by transaction.
UNDECIDED = {"undecided": 1, "two-undecided": 2, "batches-undecided": 20, "q1:1:r1": 9}


async def fill(client: RawClient) -> None:
    """Prepare and decide all ``TRANSACTIONS``, with their halves between each other."""
    first: dict[str, Any] = {}
    run = await QueryRun.begin(client)
    for tx_id, (_, _, halves, _, _) in TRANSACTIONS.items():
        if halves == 1 or tx_id.startswith("two"):
            first[tx_id] = await _half(client, tx_id, 0, TOPIC, halves)
    for tx_id in ("two-undecided", "two", "two-rolled-back"):
        await _half(client, tx_id, 1, "loyalty", 2)
    for number in (0, 1):
        for tx_id in ("batches", "batches-undecided"):
            payload = run.payload(messages(f"{tx_id[-1]}{number}", 10, TAGS="batched"), TOPIC, 0)
            ext = {
                "group": "P", "topic": TOPIC, "queueId": "0", "messages": "10", "checksum": str(crc32(payload)),
                "index": str(number), "count": "2", "txId": tx_id, "defaultTopicQueueNums": "1",
            }  # fmt: skip
            answer = await client.ask(PREPARE_BATCH, ext, payload)
            assert answer.code == 0, answer
            first.setdefault(tx_id, answer)
    for batch, attempt, count in ((0, "0.2", 3), (0, "0.1", 5), (1, "0.1", 4), (0, "0.1", 7), (1, "0.1", 5)):
        assert (await run.prepare(batch, attempt, messages("q", count), topic=TOPIC)).code == 0
    assert (await run.decide(0, "0.1")).code == 0
    for tx_id, (outcome, by, _, _, _) in TRANSACTIONS.items():
        if outcome == "UNDECIDED" or by == "query":
            continue
        if by == "operator":
            ext = {"group": "P", "txId": tx_id, "verdict": "COMMIT", "operator": "ann", "reason": "test"}
            answer = await client.ask(RESOLVE, ext)
        else:
            more = {"fromTransactionCheck": "true"} if by in ("check", "marker") else {}
            more |= {"HMQ_DECIDED_BY": "marker"} if by == "marker" else {}
            more |= {"HMQ_TX_ID": tx_id}
            half = first[tx_id]
            if tx_id == "batches":
                ext = {"queueOffset": half.ext["halfIndex"], "msgId": f"{int(half.ext['offset']):032x}"}
                half = half._replace(ext=ext)
            answer = await client.end(half, tx_id, COMMIT if outcome == "COMMITTED" else ROLL_BACK, **more)
        assert answer.code == 0, (tx_id, answer)


async def _half(client: RawClient, tx_id: str, index: int, topic: str, count: int) -> Any:
    more = {} if count == 1 else {"HMQ_TX_ID": tx_id, "HMQ_TX_INDEX": str(index), "HMQ_TX_COUNT": str(count)}
    unique = tx_id if count == 1 else f"{tx_id}-{index}"
    answer = await client.half(topic, f"body of {unique}".encode(), unique=unique, TAGS="a", KEYS="k1 k2", **more)
    assert answer.code == 0, answer
    return answer
