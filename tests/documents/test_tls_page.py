"""docs/tls.md, as an operator follows it: its certificates, brokers, clients and probe, one after the other in one directory."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.documents.blocks import blocks_of
from tests.documents.pages import commands
from tests.documents.shell import shell
from tests.support.ports import free_port

_HERE = "tests/documents/test_tls_page.py"

pytestmark = pytest.mark.slow


class Terminal:
    """Where the commands of the page are typed; ports are others than those that are shown."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ports = {"9876": str(free_port()), "8080": str(free_port())}

    def here(self, text: str) -> str:
        for shown, port in self._ports.items():
            text = text.replace(shown, port)
        return text

    def run(self, written: Sequence[str]) -> list[str]:
        """What each printed; a broker runs beside the command after it, and ends with it."""
        said: list[str] = []
        serve = ""
        for command in map(self.here, written):
            if command.startswith("halfmq serve"):
                serve = (
                    f"{command} --port 0 --name-port {self._ports['9876']} --no-vip-channel --segment-bytes 1048576 "
                    "--ports-file ports.json 2> log.txt & broker=$!; trap 'kill $broker; wait $broker' EXIT\n"
                    "until test -s ports.json; do kill -0 $broker && sleep 0.05; done\nrm ports.json\n"
                )
            else:
                said.append(shell(f"{serve}{command}", self._directory).stdout)
        return said


def test_the_commands_and_the_program_run(tmp_path: Path) -> None:
    for program in ("openssl", "curl"):
        if shutil.which(program) is None:
            pytest.skip(f"no {program} here: apt-get install {program}")
    first, program_of_it, clients, probe = blocks_of(f"{_HERE}::test_the_commands_and_the_program_run")
    terminal = Terminal(tmp_path)
    five = commands(first)
    assert len(five) == 5
    terminal.run(five)
    log = tmp_path / "log.txt"
    assert "(TLS)" in log.read_text()
    (tmp_path / "program.py").write_text(terminal.here(program_of_it.text))
    assert terminal.run([five[3], "python program.py"]) == ["orders\n"]

    for_clients = commands(clients)
    terminal.run(for_clients)
    with pytest.raises(AssertionError, match="perhaps without a certificate"):
        terminal.run([for_clients[2], five[4]])
    assert "peer did not return a certificate" in log.read_text()
    (health,) = terminal.run(commands(probe))
    assert '"serving":true' in health.replace(" ", "")
