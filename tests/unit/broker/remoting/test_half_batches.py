"""Requests 29012 to 29014 as frames: what their responses say."""

from pathlib import Path

from tests.support.half_batches import QueryRun, bodies, messages
from tests.support.in_process import serving


async def test_responses_say_where_it_is_and_what_was_decided(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        run = await QueryRun.begin(await running.client())
        assert run.store_host == running.state.settings.store_host
        first = await run.prepare(0, "0.1", messages("a", 2))
        sums = list(run.prepared[0, "0.1"])
        again = await run.prepare(0, "0.1", messages("a", 2), index=0)
        assert first.ext == again.ext == {"offset": first.ext["offset"], "halfIndex": "0"}
        run.prepared[0, "0.1"] = sums
        assert (await run.decision(0)).ext["decided"] == "false"
        decided = await run.decide(0, "0.1")
        assert decided.ext == {"position": decided.ext["position"], "repeated": "false"}
        found = await run.decision(0)
        assert (found.ext["decided"], found.ext["position"], found.ext["lastBatch"]) == (
            "true", decided.ext["position"], "0",
        )  # fmt: skip


async def test_response_repeats_the_topic_of_the_query(tmp_path: Path) -> None:
    """A client notices by it that a broker of an earlier version ignores the topic."""
    async with serving(tmp_path) as running:
        run = await QueryRun.begin(await running.client())
        assert "queryTopic" not in (await run.decision(0)).ext
        for topic in ("orders", "*"):
            assert (await run.decision(0, queryTopic=topic)).ext["queryTopic"] == topic


async def test_damaged_entries_of_a_half_batch_refuse_the_decision_and_nothing_else(tmp_path: Path) -> None:
    """The queue entries of a decision are made of the payload: damage there must be noticed before, not after."""
    async with serving(tmp_path) as running:
        client = await running.client()
        run = await QueryRun.begin(client)
        sent = await run.prepare(0, "0.1", messages("a", 3))
        end = int(sent.ext["offset"])
        log = next(iter(sorted((tmp_path / "shard-0" / "log").iterdir())))
        data = bytearray(log.read_bytes())
        place = data.index(b"SPARKq1:0:r1", end) - 4  # the last entry ends where the texts begin
        with log.open("r+b") as file:
            file.seek(place)
            file.write(bytes([data[place] ^ 1]))
        refused = await run.decide(0, "0.1")
        assert refused.code == 1, refused
        assert "damaged" in (refused.remark or "")
        assert await bodies(client) == []
        with log.open("r+b") as file:
            file.seek(place)
            file.write(bytes([data[place]]))
        assert (await run.decide(0, "0.1")).code == 0
        assert len(await bodies(client)) == 3
