"""A closed broker leaves its files alone: another one may own them by then."""

import asyncio
import hashlib
import logging
from pathlib import Path

import pytest
from tests.support.in_process import serving
from tests.support.waiting import turns

from halfmq.core.commands import SetTopic


def digests(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): hashlib.md5(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("count", [0, 1])
async def test_what_was_submitted_before_it_is_not_written_after_it(
    tmp_path: Path, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        await client.send("T", b"one")
        sending = [asyncio.ensure_future(client.send("T", b"more")) for _ in range(20)]
        running.broker._sequencer.submit(SetTopic("U", 1, 1, 6), None)
        await turns(count)
        running.broker.close()
        closed = digests(tmp_path)
        await turns()
        assert digests(tmp_path) == closed
        for one in sending:
            one.cancel()
        await asyncio.gather(*sending, return_exceptions=True)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
