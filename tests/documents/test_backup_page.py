"""docs/backup.md: its commands, one after the other, and what they print."""

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from halfmq import Client, Outcome, compose
from tests.documents.blocks import blocks_of
from tests.documents.pages import commands
from tests.documents.shell import shell
from tests.support.served import Served
from tests.support.waiting import PATIENCE_S, wait_until

_HERE: Final = "tests/documents/test_backup_page.py"


def prepare(served: Served, tx_id: str) -> None:
    with Client(served.url, group="orders") as client:
        client.add_check("orders", lambda check: Outcome.UNKNOWN)
        client.prepare([compose("orders", b"one")], tx_id=tx_id, name="orders")


def same(shown: str, said: str) -> bool:
    """Apart from ids of stores, numbers, times, and the widths of columns."""

    def plain(text: str) -> list[str]:
        text = re.sub(r"[0-9a-f]{32}", "ID", text)
        text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.+]+", "TIME", text)
        text = re.sub(r"order-(\d)(\d)", lambda found: f"order {'ab'[int(found[2]) - 7]}", text)
        return re.sub(r"\d[\d,]*( ms| s)?", "N", text).split()

    return plain(shown) == plain(said)


@pytest.mark.slow
def test_the_commands_say_what_the_page_says(tmp_path: Path) -> None:
    shown = blocks_of(f"{_HERE}::test_the_commands_say_what_the_page_says")
    backup, first, second, verify, verified, restore, restored, to_position, earlier, listed = shown
    served = Served(tmp_path / "data", tmp_path / "log", "--segment-bytes", str(1 << 20), "--durability", "memory")
    served.start()
    environment = {"HALFMQ_URL": served.url}

    def run(block: object, **more: str) -> str:
        (command,) = commands(block)  # type: ignore[arg-type]
        for old, new in more.items():
            command = command.replace(old, new)
        return shell(command, tmp_path, environment=environment).stdout

    try:
        prepare(served, "order-17")
        said = run(backup)
        assert same(first.text, said), said
        position = re.search(r"position (\d+)", said)
        assert position is not None
        prepare(served, "order-18")
        said = run(backup)
        assert same(second.text, said), said
        assert same(verified.text, run(verify))
    finally:
        served.stop()
    said = run(restore)
    assert same(restored.text, said), said
    said = shell(commands(to_position)[0].replace("700", str(int(position[1]) + 8)), tmp_path).stdout
    assert same(earlier.text, said), said
    served.data = tmp_path / "restored"
    served.start()
    try:
        with Client(served.url, group="orders") as client:
            client.add_check("orders", lambda check: Outcome.ROLLBACK if check.id == "order-17" else Outcome.COMMIT)
            listing = ""

            def is_parked() -> bool:
                nonlocal listing
                listing = shell("halfmq tx list", tmp_path, environment=environment).stdout
                return "parked (restored)" in listing and "order-18" not in listing

            wait_until(is_parked, "the checks are answered")
            assert same(listed.text, listing), listing
    finally:
        served.stop()


@pytest.mark.slow
def test_a_copy_and_a_drill(tmp_path: Path) -> None:
    copy, drill, verified = blocks_of(f"{_HERE}::test_a_copy_and_a_drill")
    if shutil.which("rsync") is None:
        pytest.skip("no rsync here: apt-get install rsync")
    served = Served(tmp_path / "data", tmp_path / "log", "--segment-bytes", str(1 << 16), "--durability", "memory")
    served.start()
    environment = {"HALFMQ_URL": served.url}
    *steps, verify = commands(copy)
    is_manifest = [step.endswith("backup/backup.json elsewhere/") for step in steps]
    assert is_manifest == [False, False, True, False], "segments first, the manifest after them, removed ones last"
    try:
        for number in range(3):
            prepare(served, f"order-{number}")
            with Client(served.url, group="fill") as client:
                for _ in range(3):  # so that each copy has a new segment
                    client.send("fill", bytes(30_000))
            shell("halfmq backup backup", tmp_path, environment=environment)
            for step in steps:
                if (tmp_path / "elsewhere" / "backup.json").exists():  # a copy that ends before this step is whole
                    shell(verify, tmp_path)
                shell(step, tmp_path)
            assert shell(verify, tmp_path).stdout.endswith("\nwhole\n")
    finally:
        served.stop()
    restore, serve, verify = commands(drill)
    shell(restore.replace("restore backup", "restore elsewhere"), tmp_path)
    with (tmp_path / "log-of-drill").open("w") as log:
        process = subprocess.Popen([sys.executable, "-m", *serve.split()], cwd=tmp_path, stderr=log)
    try:
        wait_until((tmp_path / "drill.json").exists, "the restored broker serves", unless=process.poll)
        said = shell(verify, tmp_path).stdout
        assert same(verified.text, said), said
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0
