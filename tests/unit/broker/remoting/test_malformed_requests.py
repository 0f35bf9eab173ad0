"""The commands of halfmq with fields or bodies that nobody can mean: each is refused by name and changes nothing.

Which numbers are malformed is tested for every field in ``test_strict_fields``; here stands that each command answers on a connection that
stays, and what its handler refuses. The commands of RocketMQ: ``scenarios/test_bad_input``.
"""

import json
from pathlib import Path

from tests.support.in_process import serving

ONE = "AC10000100002A9F0000000000000001"
PREPARE = {"group": "G", "txId": "T1", "topic": "T", "queueId": "0", "messages": "1", "checksum": "0", "index": "0"}
DECIDE = {"group": "G", "query": "q", "batch": "0", "run": "r", "digest": "00" * 16}
POLL = {"group": "P", "clientId": "me", "waitMs": "0"}
RAW = {
    "consumerGroup": "C", "store": "ab" * 16, "topic": "T", "topicId": "1", "queueId": "0", "firstOffset": "0",
    "endOffset": "9", "maxBytes": "100",
}  # fmt: skip
TABLE = {"store": "ab" * 16, "wanted": "rows", "firstHalf": "0", "endHalf": "9", "position": "0", "maxBytes": "100"}
RESOLVE = {"txId": ONE, "verdict": "COMMIT", "operator": "ada"}
#: (command, ext, body, code, what the remark names). 29 names a field; 1 is what a malformed body becomes.
REQUESTS: tuple[tuple[int, dict[str, str], bytes, int, str], ...] = (
    (29_001, {"topics": "T"}, b"{", 1, "HMQ_POSITION"),
    (29_002, {"max": "1001"}, b"", 29, "max"),
    (29_002, {"from": "x"}, b"", 29, "from"),
    (29_003, {}, b"", 29, "txId"),
    (29_004, RESOLVE | {"verdict": "UNKNOWN"}, b"", 29, "verdict"),
    (29_004, RESOLVE | {"operator": ""}, b"", 29, "operator"),
    (29_004, RESOLVE | {"reason": "two\nlines"}, b"", 29, "reason"),
    (29_005, {}, b"{", 1, "malformed"),
    (29_005, {}, json.dumps(["x"] * 1_001).encode(), 1, "1000"),
    (29_006, {}, b"", 29, "txId"),
    (29_007, {"group": "P", "operator": " "}, b'{"check_limit":1,"past_limit":"rollback"}', 29, "operator"),
    (29_007, {"group": "P", "operator": "ada"}, b'{"check_limit":3}', 29, "check limit"),
    (29_007, {"group": "P", "operator": "ada"}, b'{"chek_limit":3}', 1, "chek_limit"),
    (29_007, {"group": "P", "operator": "ada"}, b"{", 1, "malformed"),
    (29_007, {"group": "a b"}, b"", 29, "group"),
    (29_008, {"from": "-1"}, b"", 29, "from"),
    (29_017, {"from": "-1"}, b"", 29, "from"),
    (29_018, {"query": "q", "operator": "me"}, b"", 29, "reason"),
    (29_009, POLL | {"group": "a b"}, b"", 29, "group"),
    (29_009, POLL | {"waitMs": "x"}, b"", 29, "waitMs"),
    (29_010, {"max": "5"}, b"", 29, "group"),
    (29_010, {"group": "P", "max": "many"}, b"", 29, "max"),
    (29_011, {"topic": "T", "queueId": "0", "offset": "0", "end": "3"}, b"", 29, "bytes: missing"),
    (29_012, {}, b"", 29, "group: missing"),
    (29_012, PREPARE | {"queueId": "x"}, b"", 29, "queueId"),
    (29_012, PREPARE, b"junk", 29, "checksum"),
    (29_013, DECIDE | {"digest": "abcd"}, b"[]", 29, "digest"),
    (29_013, DECIDE, b"{", 1, "winners"),
    (29_013, DECIDE | {"batch": "-5"}, b"[]", 29, "batch"),
    (29_014, {"query": "q", "batch": "many", "run": "r"}, b"", 29, "batch"),
    (29_014, {"query": "a b", "batch": "1", "run": "r"}, b"", 29, "query"),
    (29_026, {"group": "P", "txId": "fenced"}, b"", 29, "since"),
    (29_026, {"group": "P", "txId": "fenced", "since": "-1"}, b"", 29, "since"),
    (29_026, {"group": "a b", "txId": "fenced", "since": "0"}, b"", 29, "group"),
    (29_026, {"group": "P", "txId": "a b", "since": "0"}, b"", 29, "transaction id"),
    (29_026, {"group": "P", "txId": "5-7f000001-18f0a0b0c0d-1a2b-0badcafe-1", "since": "0"}, b"", 29, "generates"),
    (29_015, RAW | {"firstOffset": "x"}, b"", 29, "firstOffset"),
    (29_016, TABLE | {"wanted": "everything"}, b"", 29, "everything"),
    (29_016, TABLE | {"firstHalf": "10"}, b"", 29, "endHalf 9 is before firstHalf 10"),
    (29_009, POLL | {"clientId": "two\nlines"}, b"", 29, "clientId"),
)


async def test_a_malformed_request_is_refused_by_name_and_changes_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        assert (await client.half("T", b"one", unique=ONE)).code == 0
        groups, before = set(running.state.producer_groups), running.log_bytes()
        for code, ext, body, expected, named in REQUESTS:
            answer = await client.ask(code, ext, body)
            assert (answer.code, named in (answer.remark or "")) == (expected, True), (code, ext, body, answer)
        assert (await client.ask(30, {"topic": "T", "queueId": "0"})).code == 0
        assert running.log_bytes() == before
        assert (set(running.state.producer_groups), running.state.queries) == (groups, {})
