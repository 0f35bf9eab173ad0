"""What docs/recovery.md shows of a start, of `halfmq store verify` and `halfmq store dump`: the events are made, the lines compared."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from halfmq import Client
from tests.documents.blocks import blocks_of
from tests.documents.pages import Block, commands, output, same
from tests.documents.shell import shell
from tests.support.served import Served

_HERE = "tests/documents/test_recovery_page.py"
SEGMENT_BYTES = 65_536
#: Messages that fill a segment and a half.
_MESSAGES = 100

pytestmark = pytest.mark.slow


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    # A checkpoint while a test waits would change what the next start reads, and says.
    options = ("--segment-bytes", str(SEGMENT_BYTES), "--checkpoint-interval-ms", "3600000")
    served = Served(tmp_path / "data", tmp_path / "log.txt", *options)
    yield served
    served.stop()


def send(served: Served, count: int = _MESSAGES) -> None:
    with Client(served.url, group="shop") as client:
        for _ in range(count):
            client.send("orders", b"x" * 700)


def said(served: Served) -> str:
    """The line of its last start, from the store's name on."""
    return re.findall(r"(store \S+ \(durability .*)", served.log.read_text())[-1]


def refused(served: Served) -> str:
    """The last line of a start that ends with 1."""
    command = [sys.executable, "-m", "halfmq", "serve", "--data", str(served.data), "--port", "0", "--name-port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, done.stderr
    return done.stderr.splitlines()[-1]


def assert_same(block: Block, line: str) -> None:
    assert same(block.text, line), f"{block.place} shows\n{block.text}\nand it is\n{line}"


def overwrite(path: Path, at: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)


def segment_of(served: Served, offset: int) -> tuple[Path, int]:
    """(file, place in it) of a log offset."""
    start = offset // SEGMENT_BYTES * SEGMENT_BYTES
    return served.data / "shard-0" / "log" / f"{start:020d}.seg", offset - start


def test_a_kill_a_torn_tail_and_damage_say_what_the_page_shows(served: Served) -> None:
    clean, damage, torn = blocks_of(f"{_HERE}::test_a_kill_a_torn_tail_and_damage_say_what_the_page_shows")
    served.start()
    send(served)
    assert served.stop() == 0  # it leaves a checkpoint
    served.start()
    send(served, 5)
    served.kill()
    served.start()
    assert_same(clean, said(served))
    served.kill()
    end = int(re.findall(r"log \d+ to (\d+)", said(served))[-1])
    file, place = segment_of(served, end)
    kept = served.data.with_name("kept")
    shutil.copytree(served.data, kept)
    # The start that ended there has written its own batch behind it, which ends before the zeros.
    tail = file.read_bytes()[place:].rstrip(b"\0")
    overwrite(file, place + (len(tail) + 7) // 8 * 8, b"what a power loss left")
    served.start()
    assert_same(torn, said(served))
    served.kill()
    shutil.rmtree(served.data)
    kept.rename(served.data)
    overwrite(file, place - 100, b"damage")
    assert_same(damage, refused(served))


def test_a_log_whose_beginning_is_gone_is_refused_as_the_page_shows(served: Served) -> None:
    (block,) = blocks_of(f"{_HERE}::test_a_log_whose_beginning_is_gone_is_refused_as_the_page_shows")
    served.start()
    send(served)
    served.kill()
    (served.data / "shard-0" / "log" / f"{0:020d}.seg").unlink()
    for name in ("checkpoint", "published"):
        (served.data / "shard-0" / name).unlink(missing_ok=True)
    assert_same(block, refused(served))


def test_verify_and_dump_print_what_the_page_shows(served: Served, tmp_path: Path) -> None:
    whole, damaged, dump = blocks_of(f"{_HERE}::test_verify_and_dump_print_what_the_page_shows")
    for _ in range(2):
        served.start()
        send(served, 10)
        assert served.stop() == 0
    assert_same(whole, shell("halfmq store verify data", tmp_path).stdout)
    (command,) = commands(dump)
    assert_same(dump._replace(text=output(dump)), shell(command.replace("DIR", "data"), tmp_path).stdout)
    first = min((served.data / "shard-0" / "queues").glob("*/*/*.q"))
    # In the first entry, which begins with its log offset in eight bytes.
    overwrite(first, 4, b"\xff")
    assert_same(damaged, shell("halfmq store verify data", tmp_path, status=1).stdout)
