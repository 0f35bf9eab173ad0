import threading
from pathlib import Path

from demo.turns import FileTurn
from tests.support.waiting import PATIENCE_S, wait_until


def is_waited_for(path: Path) -> bool:
    """The kernel marks those who wait for a lock."""
    lines = Path("/proc/locks").read_text().splitlines()
    return any("->" in line and f":{path.stat().st_ino} " in line for line in lines)


def test_two_workers_of_one_process_exclude_each_other(tmp_path: Path) -> None:
    first, second = FileTurn(tmp_path / "turn"), FileTurn(tmp_path / "turn")
    first.take()
    got = threading.Event()

    def wait() -> None:
        second.take()
        got.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    wait_until(lambda: got.is_set() or is_waited_for(tmp_path / "turn"), "the second one to wait for its turn")
    assert not got.is_set()
    first.give()
    waiter.join(PATIENCE_S)
    assert got.is_set()
    first.give()  # harmless
    second.give()
    first.take()
