"""Users of a broker that is a process (``Served`` with ``--secrets-key-file``), made with `halfmq user`, for tests."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from halfmq.broker.config import AUDIT_NAME
from halfmq.broker.first_token import NAME as TOKEN
from halfmq.broker.services.users import FIRST
from tests.documents.shell import shell
from tests.support.served import Served


class ServedUsers:
    """Makes alice, an administrator. Secrets are in files of ``directory``, named after their users."""

    def __init__(self, served: Served, directory: Path, cafile: Path | None = None) -> None:
        """``cafile``: the authority of the broker's certificate; None: it does not speak TLS."""
        self._served = served
        self._directory = directory
        self._cafile = cafile
        first = self.url(FIRST, served.data / TOKEN)
        shell(f"halfmq user add alice --administrator --url '{first}' --secret-file alice", directory)

    def url(self, name: str, file: Path | None = None, port: int = 0) -> str:
        """Of the name server, or of another port, as the user. ``file``: with another secret."""
        where = f"127.0.0.1:{port or self._served.name_port}"
        scheme, tls = ("rocketmqs", f"&cafile={self._cafile}") if self._cafile else ("rocketmq", "")
        return f"{scheme}://{name}@{where}?secretfile={file or self._directory / name}{tls}"

    def add(self, name: str, *permissions: str) -> None:
        """Make a user."""
        self.run(f"add {name} {_allowed(permissions)} --secret-file {name}")

    def run(self, arguments: str) -> None:
        """`halfmq user` with these arguments, as alice."""
        shell(f"halfmq user {arguments} --url '{self.url('alice')}'", self._directory)

    def set(self, name: str, *permissions: str) -> None:
        """Give a user these permissions. If they are others than before, its connections are closed."""
        self.run(f"set {name} {_allowed(permissions)}")


def audited(served: Served) -> list[dict[str, Any]]:
    """The lines of the audit log that are complete: the broker may be writing another one."""
    lines = (served.data / AUDIT_NAME).read_text().rpartition("\n")[0].splitlines()
    return [json.loads(line) for line in lines]


def _allowed(permissions: Iterable[str]) -> str:
    return " ".join(f"--allow '{permission}'" for permission in permissions)
