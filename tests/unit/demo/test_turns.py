import threading
import time
from pathlib import Path

from demo.turns import FileTurn


def test_two_workers_of_one_process_exclude_each_other(tmp_path: Path) -> None:
    first, second = FileTurn(tmp_path / "turn"), FileTurn(tmp_path / "turn")
    first.take()
    got = threading.Event()

    def wait() -> None:
        second.take()
        got.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    time.sleep(0.1)
    assert not got.is_set()
    first.give()
    waiter.join(10)
    assert got.is_set()
    first.give()  # harmless
    second.give()
    first.take()
