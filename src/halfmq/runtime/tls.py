"""TLS contexts, of PEM files."""

import functools
import ssl
from collections.abc import Callable

from halfmq.errors import EnvironmentFailed
from halfmq.model.address import TlsFiles
from halfmq.runtime.clock import SystemClock
from halfmq.runtime.watched_files import Watched

#: The context for the next connection. Connections that began before keep what they have.
TlsContext = Watched[ssl.SSLContext]


def tls_context(files: TlsFiles, *, is_server: bool, clock: Callable[[], float]) -> TlsContext:
    """``clock``: monotonic seconds. A server with ``cafile`` accepts only clients with a certificate.

    Raises:
        EnvironmentFailed: a file cannot be used; with its name and the reason.
    """
    return Watched(files, lambda: _context(files, is_server), clock)


def _context(files: TlsFiles, is_server: bool) -> ssl.SSLContext:
    cafile, certfile, keyfile = files
    if is_server:
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
    return tls_context(files, is_server=False, clock=SystemClock().elapsed_s)
