"""The baseline server responds like a broker, and stores nothing."""

import asyncio

from tests.support.raw_client import RawClient, property_string

from halfmq.bench.baseline import BaselineProtocol


async def test_a_half_is_answered_with_places_that_move_on_and_an_end_with_success() -> None:
    server = await asyncio.get_running_loop().create_server(BaselineProtocol, "127.0.0.1", 0)
    client = await RawClient.connect(server.sockets[0].getsockname()[1])
    ext = {
        "a": "g", "b": "T", "c": "TBW102", "d": "8", "e": "1", "f": "4", "g": "1", "h": "0", "j": "0",
        "i": property_string(UNIQ_KEY="k", TRAN_MSG="true"),
    }  # fmt: skip
    places = []
    for _ in range(3):
        answer = await client.ask(310, ext, b"body")
        assert answer.code == 0
        places.append(int(answer.ext["msgId"][-16:], 16))
    assert places == sorted(set(places))
    end = {
        "producerGroup": "g",
        "tranStateTableOffset": "0",
        "commitLogOffset": "0",
        "commitOrRollback": "8",
        "msgId": "k",
    }
    assert (await client.ask(37, end)).code == 0
    await client.close()
    server.close()
