"""Secrets of users at rest: sealed with a key that is in a file outside of the log, and passwords as hashes.

A secret with which a user signs must be readable by the broker, so it cannot be hashed. Whoever has the log, a backup or a copy of it, but
not the key file, reads no secret. Library: cryptography, imported when one of these is used, since most brokers have no users.
"""

import binascii
import contextlib
import os
import stat
from pathlib import Path
from types import ModuleType
from typing import Final

from halfmq.errors import EnvironmentFailed, MissingDependency
from halfmq.runtime.entropy import Entropy

KEY_BYTES: Final = 32
#: In front of a sealed secret. Of this size, so that random ones do not repeat before 2**32 secrets (NIST SP 800-38D, 8.3).
_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16
#: Of a key file: more is none. The base64 of a key has 44 characters.
_FILE_BYTES_MAX: Final = 100
_SALT_BYTES: Final = 16
#: Argon2id: memory in KiB, passes, lanes. Precedent: OWASP, Password Storage Cheat Sheet. About 20 ms.
_MEMORY_KIB: Final = 19_456
_PASSES: Final = 2
_LANES: Final = 1
_MAKE_ONE: Final = "(umask 077; openssl rand -base64 32 > FILE) makes one"


class SecretsKey:
    """The key of ``load_key``. May be used by any thread."""

    __slots__ = ("_cipher",)

    def __init__(self, key: bytes) -> None:
        """``key``: ``KEY_BYTES`` random bytes. Raises MissingDependency: cryptography is not installed."""
        self._cipher = _ciphers().AESGCM(key)

    def __repr__(self) -> str:
        return "SecretsKey(...)"

    def seal(self, user: str, secret: bytes, entropy: Entropy) -> bytes:
        """``secret``, encrypted for this user: 28 bytes longer. Nonce, then AES-256-GCM with the user's name as associated data."""
        nonce = entropy.token(_NONCE_BYTES)
        sealed: bytes = self._cipher.encrypt(nonce, secret, user.encode())
        return nonce + sealed

    def unseal(self, user: str, sealed: bytes) -> bytes:
        """The secret.

        Raises:
            EnvironmentFailed: it was sealed with another key or for another user, or is damaged.
        """
        from cryptography.exceptions import InvalidTag

        try:
            if len(sealed) < _NONCE_BYTES + _TAG_BYTES:
                raise InvalidTag
            secret: bytes = self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], user.encode())
        except InvalidTag:
            raise EnvironmentFailed(
                f"the secret of user {user} cannot be read: the key file is not the one that the store was made with, or the "
                f"secret is damaged",
                hint="--secrets-key-file with the file of before, from a backup; without it every user needs a new secret",
            ) from None
        return secret


def load_key(path: Path, *, may_create: bool, entropy: Entropy) -> SecretsKey:
    """The key in the file ``path``: 32 random bytes in base64, and a line end. Only its owner, this process's account, may have access.

    ``may_create``: create it if it is missing, as for a store without users. It is complete and durable before it has its name.

    Raises:
        EnvironmentFailed: missing, no key, not a regular file, of another owner, accessible by others, or not readable.
        MissingDependency: cryptography is not installed.
    """
    try:
        if may_create and not path.exists():
            _create(path, entropy)
        text = _read(path)
    except FileNotFoundError as error:
        if may_create:
            raise _unusable(
                path, "its directory does not exist", "create the directory, or name another file"
            ) from error
        raise _unusable(
            path,
            "there is no such file",
            "the secrets in the store can be read only with the file that it was made with: take it from a backup",
        ) from error
    except OSError as error:
        raise _unusable(
            path, error.strerror or str(error), f"a file of its own, which uid {os.geteuid()} can read"
        ) from error
    try:
        key = binascii.a2b_base64(text.removesuffix(b"\n"), strict_mode=True)
    except binascii.Error:
        key = b""
    if len(key) != KEY_BYTES:
        advice = _MAKE_ONE if may_create else "take it from a backup: with another key nobody's secret can be read"
        raise _unusable(path, f"it contains no {KEY_BYTES} bytes in base64", advice)
    return SecretsKey(key)


def _create(path: Path, entropy: Entropy) -> None:
    """Under another name first, so that a crash leaves no half of a file; then linked, which does not replace one that is there by now."""
    temporary = path.with_name(f".{path.name}.{entropy.token(8).hex()}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            os.write(descriptor, binascii.b2a_base64(entropy.token(KEY_BYTES)))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        os.unlink(temporary)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _read(path: Path) -> bytes:
    """The content, after a look at who has access to it. Raises OSError, and EnvironmentFailed."""
    # The status is that of what was opened. Without O_NONBLOCK a pipe would wait for its writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise _unusable(path, "it is not a regular file", _MAKE_ONE)
        if found.st_uid != os.geteuid():
            raise _unusable(
                path,
                f"it belongs to uid {found.st_uid}, and the broker is uid {os.geteuid()}",
                "chown it to the broker's",
            )
        if found.st_mode & 0o077:
            raise _unusable(
                path, f"others have access to it (mode {stat.S_IMODE(found.st_mode):o})", f"chmod 600 {path}"
            )
        return os.read(descriptor, _FILE_BYTES_MAX)
    finally:
        os.close(descriptor)


def _unusable(path: Path, why: str, hint: str) -> EnvironmentFailed:
    return EnvironmentFailed(f"cannot use the key file of users' secrets {path}: {why}", hint=hint)


def hash_password(password: str, entropy: Entropy) -> str:
    """Argon2id in PHC's text form. Takes about 20 ms and 19 MiB: not on the event loop. Raises MissingDependency."""
    argon2 = _argon2()
    kdf = argon2.Argon2id(
        salt=entropy.token(_SALT_BYTES), length=32, iterations=_PASSES, lanes=_LANES, memory_cost=_MEMORY_KIB
    )
    text: str = kdf.derive_phc_encoded(password.encode())
    return text


def is_password(password: str, phc: str) -> bool:
    """Whether ``phc`` is a hash of ``password``; False also if it is none, as "". Not on the event loop. Raises MissingDependency."""
    argon2 = _argon2()
    from cryptography.exceptions import InvalidKey

    try:
        argon2.Argon2id.verify_phc_encoded(password.encode(), phc)
    except (InvalidKey, ValueError):
        return False
    return True


def _ciphers() -> ModuleType:
    try:
        from cryptography.hazmat.primitives.ciphers import aead
    except ImportError as error:
        raise _missing() from error
    return aead


def _argon2() -> ModuleType:
    try:
        from cryptography.hazmat.primitives.kdf import argon2
    except ImportError as error:
        raise _missing() from error
    return argon2


def _missing() -> MissingDependency:
    return MissingDependency("users need the package cryptography", hint="pip install 'halfmq[server]'")
