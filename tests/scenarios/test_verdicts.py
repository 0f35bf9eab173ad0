"""The first verdict stands: over raw frames, in one segment, repeated, opposed, after a restart."""

import asyncio
import shutil
from pathlib import Path

import pytest
from tests.support.in_process import Running, serving
from tests.support.raw_client import Answer, RawClient, command, end_ext
from tests.support.waiting import soon, until

from halfmq.model.settings import BrokerSettings

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
ID = "AC10000100002A9F0000000000000001"


async def visible(client: RawClient, topic: str = "T") -> list[bytes]:
    """Bodies of all messages that a consumer sees in queue 0 of the topic."""
    pulled = await client.pull(topic, 0)
    bodies = []
    at = 0
    while pulled.code == 0 and at < len(pulled.body):
        size = int.from_bytes(pulled.body[at : at + 4], "big")
        length = int.from_bytes(pulled.body[at + 84 : at + 88], "big")
        bodies.append(pulled.body[at + 88 : at + 88 + length])
        at += size
    return bodies


def assert_settled(answer: Answer, verdict: str, *, repeated: bool) -> int:
    assert answer.code == 0, answer
    assert answer.ext["HMQ_VERDICT"] == verdict
    assert answer.ext["HMQ_REPEATED"] == ("true" if repeated else "false")
    assert answer.ext["HMQ_TX_ID"] == ID
    return int(answer.ext["HMQ_POSITION"])


def assert_conflict(answer: Answer, standing: str) -> None:
    assert answer.code == 604, answer
    assert answer.ext["HMQ_VERDICT"] == standing


async def test_half_is_invisible_until_its_commit_and_visible_once_after_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        half = await client.half("T", b"one", unique=ID)
        assert half.code == 0
        assert await visible(client) == []
        assert_settled(await client.end(half, ID, COMMIT), "COMMITTED", repeated=False)
        assert await visible(client) == [b"one"]


@pytest.mark.parametrize(
    ("verdicts", "codes"), [((COMMIT, ROLLBACK), [0, 604]), ((ROLLBACK, COMMIT), [0, 604]), ((COMMIT, COMMIT), [0, 0])]
)
async def test_two_ends_in_one_tcp_segment_are_settled_by_the_first(
    tmp_path: Path, verdicts: tuple[int, int], codes: list[int]
) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        half = await client.half("T", b"one", unique=ID)
        waiting = [client.expect(opaque) for opaque in (901, 902)]
        client.write(b"".join(command(37, 901 + n, end_ext(half, ID, verdict)) for n, verdict in enumerate(verdicts)))
        answers = await soon(asyncio.gather(*waiting))
        assert [answer.code for answer in answers] == codes
        assert len({answer.ext["HMQ_POSITION"] for answer in answers}) == 1
        assert len(await visible(client)) == (verdicts[0] == COMMIT)


@pytest.mark.parametrize("wanted", [COMMIT, ROLLBACK])
async def test_verdict_that_memory_forgets_between_request_and_decision_still_stands(
    tmp_path: Path, wanted: int
) -> None:
    """Goal: "never prepared here" is said of nothing that was. Method: a window of one verdict; the first one, one more
    that pushes it out, and the question, all in one turn, so that the row is not there yet when the question comes in."""
    other = "AC10000100002A9F0000000000000002"
    async with serving(tmp_path, settings=BrokerSettings(dedup_ids_max=1)) as running:
        client = await running.client()
        one, two = await client.half("T", b"one", unique=ID), await client.half("T", b"two", unique=other)
        waiting = [client.expect(opaque) for opaque in range(901, 905)]
        asked = [
            end_ext(one, ID, COMMIT),
            end_ext(two, other, COMMIT),
            end_ext(one, ID, wanted),
            end_ext(one, other, wanted),
        ]
        client.write(b"".join(command(37, 901 + n, ext) for n, ext in enumerate(asked)))
        first, _, again, wrong = await soon(asyncio.gather(*waiting))
        assert first.code == 0
        if wanted == COMMIT:
            assert_settled(again, "COMMITTED", repeated=True)
        else:
            assert_conflict(again, "COMMITTED")
        assert again.ext["HMQ_POSITION"] == first.ext["HMQ_POSITION"]
        assert wrong.code == 1
        assert (await client.end(one, "F" * 32, wanted)).code == 1
        assert await visible(client) == [b"one", b"two"]


async def test_oneway_end_is_not_answered_and_counts_for_the_one_behind_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        half = await client.half("T", b"one", unique=ID)
        verdict = end_ext(half, ID, COMMIT)
        client.write(command(37, 776, verdict, oneway=True) + command(37, 777, verdict))
        assert_settled(await soon(client.expect(777)), "COMMITTED", repeated=True)
        assert not client.expect(776).done()


async def restarted_end(running: Running, half: Answer, wanted: int) -> Answer:
    client = await running.client()
    return await client.end(half, ID, wanted)


@pytest.mark.parametrize("forget", [False, True], ids=["recent window", "transaction table"])
@pytest.mark.parametrize("committed", [True, False])
async def test_verdict_stands_after_a_restart(tmp_path: Path, committed: bool, forget: bool) -> None:
    first, standing = (COMMIT, "COMMITTED") if committed else (ROLLBACK, "ROLLED_BACK")
    async with serving(tmp_path) as running:
        client = await running.client()
        half = await client.half("T", b"one", unique=ID)
        position = assert_settled(await client.end(half, ID, first), standing, repeated=False)
    async with serving(tmp_path) as running:
        if forget:  # as after 120 s: only the table on disk knows
            for group in running.state.producer_groups.values():
                group.settled.clear()
            running.state.verdicts.clear()
        assert assert_settled(await restarted_end(running, half, first), standing, repeated=True) == position
        assert_conflict(await restarted_end(running, half, ROLLBACK if committed else COMMIT), standing)
        assert len(await visible(await running.client())) == committed


async def test_verdict_stands_after_a_trim_of_what_came_before_it(tmp_path: Path) -> None:
    """Goal: the half's first record is gone, its verdict is not. Method: 64 KiB segments, retention by size, small rolls."""
    async with serving(
        tmp_path,
        segment_bytes=1 << 16,
        retention_bytes=1 << 17,
        retention_check_ms=50,
        checkpoint_interval_ms=100,
        settings=BrokerSettings(dedup_window_ms=0),
    ) as running:
        client = await running.client()
        half = await client.half("T", b"one", unique=ID)
        for number in range(40):  # several segments; the half is copied forward
            assert (await client.send("Fill", bytes(8_000), unique=f"FILL{number:028d}")).code == 0
        await until(lambda: running.state.log_start > int(half.ext["msgId"][-16:], 16), "the half's place is trimmed")
        assert_settled(await client.end(half, ID, COMMIT), "COMMITTED", repeated=False)
        assert_settled(await client.end(half, ID, COMMIT), "COMMITTED", repeated=True)
        assert_conflict(await client.end(half, ID, ROLLBACK), "COMMITTED")
        assert await visible(client) == [b"one"]
    async with serving(tmp_path, segment_bytes=1 << 16) as running:
        assert_settled(await restarted_end(running, half, COMMIT), "COMMITTED", repeated=True)
        assert await visible(await running.client()) == [b"one"]


async def test_verdict_stands_when_its_half_is_trimmed_and_all_derived_files_are_lost(tmp_path: Path) -> None:
    """The transaction table is made again from the log, which says whose the verdict is, and no more where its half was."""
    async with serving(
        tmp_path, segment_bytes=1 << 16, retention_bytes=1 << 17, retention_check_ms=20, checkpoint_interval_ms=40,
        settings=BrokerSettings(dedup_window_ms=0),
    ) as running:  # fmt: skip
        client = await running.client()
        half = await client.half("T", b"one", unique=ID)
        for number in range(26):  # just over three segments, of which two are kept
            assert (await client.send("Fill", bytes(8_000), unique=f"FILL{number:028d}")).code == 0
            if number == 8:  # in the second segment, so that the half is no longer needed
                assert_settled(await client.end(half, ID, ROLLBACK), "ROLLED_BACK", repeated=False)
        await until(lambda: running.state.log_start, "a segment is trimmed")
        assert int(half.ext["msgId"][-16:], 16) < running.state.log_start == 1 << 16
    for path in (tmp_path / "shard-0").iterdir():
        if path.name != "log":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    async with serving(tmp_path, segment_bytes=1 << 16, settings=BrokerSettings(dedup_window_ms=0)) as running:
        await (await running.client()).send("Fill", b"later", unique=f"FILL{99:028d}")
        assert_conflict(await restarted_end(running, half, COMMIT), "ROLLED_BACK")
        assert_settled(await restarted_end(running, half, ROLLBACK), "ROLLED_BACK", repeated=True)


async def test_unknown_is_heard_and_settles_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        half = await client.half("T", b"one", unique=ID)
        client.tell(37, end_ext(half, ID, UNKNOWN))
        assert "HMQ_VERDICT" not in (await client.end(half, ID, UNKNOWN)).ext
        assert await visible(client) == []
        assert_settled(await client.end(half, ID, COMMIT), "COMMITTED", repeated=False)


async def test_several_halves_become_visible_together(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        first = await client.half("T", b"one", unique="A" * 32, HMQ_TX_ID=ID, HMQ_TX_INDEX="0")
        ext = {"HMQ_TX_ID": ID}
        incomplete = await client.end(first, "A" * 32, COMMIT, **ext)
        assert incomplete.code == 604
        assert "HMQ_VERDICT" not in incomplete.ext
        await client.half("U", b"two", unique="B" * 32, HMQ_TX_ID=ID, HMQ_TX_INDEX="1", HMQ_TX_COUNT="2")
        assert await visible(client, "T") == [] == await visible(client, "U")
        assert_settled(await client.end(first, "A" * 32, COMMIT, **ext), "COMMITTED", repeated=False)
        assert await visible(client, "T") == [b"one"]
        assert await visible(client, "U") == [b"two"]
