"""TLS contexts: of PEM files, made again when one of them changes, so that a certificate is replaced without a restart."""

import functools
import logging
import os
import ssl
from collections.abc import Callable
from typing import Final

from halfmq.errors import EnvironmentFailed
from halfmq.model.address import TlsFiles
from halfmq.runtime.clock import SystemClock

log = logging.getLogger("halfmq.tls")

#: Minimum interval between two looks at the files, seconds. Connections that began before keep what they have.
LOOK_S: Final = 1.0


class TlsContext:
    """The context of these files, as they are now. May be used by any thread."""

    def __init__(self, files: TlsFiles, *, is_server: bool, clock: Callable[[], float]) -> None:
        """``clock``: monotonic seconds. A server with ``cafile`` accepts only clients with a certificate.

        Raises:
            EnvironmentFailed: a file cannot be used; with its name and the reason.
        """
        self._files = files
        self._is_server = is_server
        self._clock = clock
        self._stamp = self._stamp_now()
        self._looked_s = clock()
        self._context = self._load()

    def current(self) -> ssl.SSLContext:
        """For the next connection. Files that cannot be used are logged once, and the ones before them stay in use."""
        # Without a lock, which a forked child could inherit locked: who is first looks, the others use what there is.
        now = self._clock()
        if now - self._looked_s >= LOOK_S:
            self._looked_s = now
            stamp = self._stamp_now()
            if stamp != self._stamp:
                self._stamp = stamp
                self._load_again()
        return self._context

    def _load_again(self) -> None:
        try:
            self._context = self._load()
        except EnvironmentFailed as error:
            log.error("changed TLS files are not used, the ones before stay in use: %s", error)
        else:
            log.info("TLS files were replaced: %s", ", ".join(filter(None, self._files)))

    def _stamp_now(self) -> tuple[object, ...]:
        """Changes when a file does, also when a link to it is set anew, as Kubernetes does with its secrets."""
        stamp: list[object] = []
        for file in filter(None, self._files):
            try:
                found = os.stat(file)
            except OSError as error:
                stamp.append(error.errno)
            else:
                stamp.append((found.st_mtime_ns, found.st_ino, found.st_size))
        return tuple(stamp)

    def _load(self) -> ssl.SSLContext:
        cafile, certfile, keyfile = self._files
        if self._is_server:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        else:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks certificate and host name
            if not cafile:
                context.load_default_certs()
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if certfile:
            try:
                # Without the function OpenSSL would ask at the terminal.
                context.load_cert_chain(certfile, keyfile, password=_no_password)
            except OSError as error:
                raise _unusable(f"{certfile} with the key {keyfile}", error) from error
        if cafile:
            try:
                context.load_verify_locations(cafile)
            except OSError as error:
                raise _unusable(cafile, error) from error
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def _no_password() -> bytes:
    raise PermissionError("the key is protected by a password")


def _unusable(what: str, error: OSError) -> EnvironmentFailed:
    reason = error.strerror or str(error)
    if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
        reason = "the key is not the one of the certificate"
    elif isinstance(error, ssl.SSLError):
        reason = f"not in PEM format, or damaged ({error.reason or reason})"
    return EnvironmentFailed(
        f"TLS: cannot use {what}: {reason}",
        hint="PEM files that this account may read, a certificate with its chain, a key without password",
    )


@functools.lru_cache(maxsize=64)
def client_context(files: TlsFiles) -> TlsContext:
    """One for all connections of this process with these files. Raises EnvironmentFailed."""
    return TlsContext(files, is_server=False, clock=SystemClock().elapsed_s)
