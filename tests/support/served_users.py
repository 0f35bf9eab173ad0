"""Users of a broker that is a process (``Served`` with ``--secrets-key-file``), made with `halfmq user`, for tests."""

from pathlib import Path

from halfmq.broker.first_token import NAME as TOKEN
from halfmq.broker.services.users import FIRST
from tests.documents.shell import shell
from tests.support.served import Served


class ServedUsers:
    """Makes alice, an administrator. Secrets are in files of ``directory``, named after their users."""

    def __init__(self, served: Served, directory: Path) -> None:
        self._served = served
        self._directory = directory
        first = self.url(FIRST, served.data / TOKEN)
        shell(f"halfmq user add alice --administrator --url '{first}' --secret-file alice", directory)

    def url(self, name: str, file: Path | None = None, port: int = 0) -> str:
        """Of the name server, or of another port, as the user. ``file``: with another secret."""
        where = f"127.0.0.1:{port or self._served.name_port}"
        return f"rocketmq://{name}@{where}?secretfile={file or self._directory / name}"

    def add(self, name: str, *permissions: str) -> None:
        """Make a user."""
        allowed = " ".join(f"--allow '{permission}'" for permission in permissions)
        shell(f"halfmq user add {name} {allowed} --url '{self.url('alice')}' --secret-file {name}", self._directory)
