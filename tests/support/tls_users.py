"""A broker with TLS and users, as a process, whose certificate and whose users' secrets are replaced while clients are at work."""

import os
import shutil
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

from tests.support.certificates import Authority, Issued
from tests.support.served import Served
from tests.support.served_users import ServedUsers
from tests.support.waiting import wait_until


class TlsUsers:
    """``start``: of ``served.starting``. Secrets are in ``directory``, in files named after their users."""

    def __init__(self, directory: Path, authority: Authority, start: Callable[..., Served]) -> None:
        self.directory = directory
        self._authority = authority
        self._own = Issued(directory / "broker.pem", directory / "broker.key")
        self._put("broker 0")
        self.served = start(
            "--secrets-key-file", str(directory / "secrets.key"), "--tls-cert", str(self._own.certificate),
            "--tls-key", str(self._own.key), "--check-interval-ms", "200",
        )  # fmt: skip
        self.users = ServedUsers(self.served, directory, authority.certificate)
        self._cuts = 0

    def replace_certificate(self, name: str) -> None:
        """Connections that begin after this get it."""
        self._put(name)
        wait_until(lambda: self._shown() == name, "the new certificate")

    def end_connections(self, user: str, *permissions: str) -> None:
        """All of the user. ``permissions``: those that it has; it gets one more, which nobody needs, since only a change ends them."""
        self._cuts += 1
        self.users.set(user, *permissions, f"describe:topic:spare-{self._cuts}")

    def rotate(self, user: str, keep_old: str) -> Path:
        """Give the user a new secret; the file with it, which nobody uses yet."""
        new = self.directory / f"{user}.new"
        self.users.run(f"rotate {user} --keep-old {keep_old} --secret-file {new}")
        return new

    def put_secret(self, user: str, new: Path) -> Path:
        """The file with the new secret takes the place of the user's; a copy of the one before."""
        old = self.directory / f"{user}.old"
        shutil.copy(self.directory / user, old)
        os.replace(new, self.directory / user)
        return old

    def _put(self, name: str) -> None:
        for new, old in zip(self._authority.issue(name), self._own, strict=True):
            beside = old.with_suffix(".new")
            shutil.copy(new, beside)
            beside.rename(old)  # who reads it meanwhile reads one of both

    def _shown(self) -> str:
        context = ssl.create_default_context(cafile=str(self._authority.certificate))
        with (
            socket.create_connection(("127.0.0.1", self.served.port)) as stream,
            context.wrap_socket(stream, server_hostname="127.0.0.1") as tls,
        ):
            (((_, name),),) = tls.getpeercert()["subject"]  # type: ignore[index, misc]
            return str(name)
