"""Who a client is: a user and a secret, with which a connection logs in (``login``), or which signs its requests
(``wire.remoting.acl``). No text of ours has the secret in it.
"""

import os
from collections.abc import Callable
from typing import Final

from halfmq.client.log import log
from halfmq.errors import EnvironmentFailed, UsageError
from halfmq.model.address import Security
from halfmq.runtime.clock import SystemClock
from halfmq.runtime.watched_files import Watched
from halfmq.wire.remoting.acl import sign_frame

#: Who gives no secret in another way.
VARIABLE: Final = "HALFMQ_SECRET"
#: More is no secret.
_SECRET_BYTES_MAX: Final = 1_024


class Credentials:
    """A user, with its secret as it is now."""

    def __init__(self, user: str, secret: Callable[[], bytes], read_again: Callable[[], bytes] | None = None) -> None:
        """``read_again``: the secret, looked up now; None: it cannot change."""
        self.user = user
        self._secret = secret
        self._read_again = read_again or secret

    def __repr__(self) -> str:
        return f"Credentials({self.user!r}, ***)"

    def secret(self) -> bytes:
        """As it is now; a file is looked at not more often than once in a second."""
        return self._secret()

    def is_replaced(self, secret: bytes) -> bool:
        """Whether there is another one than ``secret`` by now; looks at once."""
        return self._read_again() != secret

    def sign(self, frame: bytes) -> bytes:
        """The complete frame of a request, signed with the secret as it is now."""
        return sign_frame(frame, self.user, self._secret())


def credentials_of(security: Security, secret: str | None = None) -> Credentials | None:
    """Of the user of a URL; None: it names none. A file is read again when it changes; the environment is read once.

    Raises:
        UsageError: there is a user without a secret, a secret without a user, or both a file and a secret.
        EnvironmentFailed: the file cannot be used.
    """
    user, file = security.user, security.secretfile
    if not user:
        if secret is not None:
            raise UsageError("a secret without a user", hint="the url names the user: rocketmq://user@host:port")
        return None
    if file:
        if secret is not None:
            raise UsageError("a secret, and a url with a secretfile", hint="only one of them")
        watched = Watched([file], lambda: _read(file), SystemClock().elapsed_s)
        return Credentials(user, watched.current, watched.look)
    given = os.environ.get(VARIABLE) if secret is None else secret
    if given is None:
        raise UsageError(
            "the url names a user, and there is no secret",
            hint=f"rocketmq://user@host:port?secretfile=FILE, {VARIABLE} in the environment, or secret= of the client",
        )
    secret_bytes = _checked(given)
    return Credentials(user, lambda: secret_bytes)


def _checked(secret: object) -> bytes:
    if not isinstance(secret, str) or not secret.strip() or len(secret) > _SECRET_BYTES_MAX:
        raise UsageError("that is no secret", hint=f"text of 1 to {_SECRET_BYTES_MAX} characters")
    return secret.strip().encode()


def _read(file: str) -> bytes:
    try:
        with open(file, "rb") as opened:
            secret = opened.read(_SECRET_BYTES_MAX + 1).strip()
            is_shared = os.fstat(opened.fileno()).st_mode & 0o077
    except OSError as error:
        hint = "a file with nothing but the secret, which this account may read"
        raise EnvironmentFailed(f"secretfile {file} cannot be read: {error.strerror or error}", hint=hint) from error
    if not 0 < len(secret) <= _SECRET_BYTES_MAX:
        raise EnvironmentFailed(f"secretfile {file} is empty or too large", hint="nothing but the secret")
    if is_shared:  # no error: in a container a mounted secret often is, and nobody else is there
        log.warning("secretfile %s can be read by other accounts of this machine: chmod 600", file)
    return secret
