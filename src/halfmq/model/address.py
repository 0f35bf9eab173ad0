"""Addresses of servers, and the one grammar of URLs that name them: of clients, commands, Spark's options, environment variables, name
servers.

    rocketmq://[user@]host:port[;host:port...]      also with ``,``, and without the scheme, as NAMESRV_ADDR has it
    rocketmqs://...      the same with TLS

    ?secretfile=FILE                of the user; without it the program has another way to give the secret
    &cafile=FILE                    with TLS: the CAs that sign the server's certificate, instead of the machine's
    &certfile=FILE&keyfile=FILE     with TLS: the client's own

An IPv6 address is in brackets, with the interface of a link-local one behind ``%`` or, as URLs write it, ``%25`` (RFC 6874). Users paste
URLs with passwords, and errors end up in logs and tickets: what may be a secret is refused, and no error shows it.
"""

import re
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, NamedTuple
from urllib.parse import parse_qsl

from halfmq.errors import UsageError

#: Of a name server. Precedent: RocketMQ.
DEFAULT_PORT: Final = 9876

_HINT: Final = "rocketmq://host:port[;host:port]"
_HINT_OF_TLS: Final = (
    "rocketmqs://[user@]host:port[?cafile=FILE][&certfile=FILE&keyfile=FILE][&secretfile=FILE], each of them once"
)
_PLAIN: Final = "rocketmq"
_TLS: Final = "rocketmqs"
_URL: Final = re.compile(r"(?:(?P<scheme>[A-Za-z][A-Za-z0-9+.-]{0,30})://)?(?P<rest>.*)", re.DOTALL)
_USER: Final = re.compile(r"[A-Za-z0-9_.-]+")
_HOST_NAME: Final = re.compile(r"[^\s:;,/\\?#%&=@\[\]]+")
_BRACKETED: Final = re.compile(r"\[(?P<host>[^\[\]]*)\](?::(?P<port>.*))?", re.DOTALL)


class Address(NamedTuple):
    """Host and TCP port of a server; ``str`` gives ``host:port`` or ``[v6]:port``. Java splits at the last colon, others need brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class TlsFiles(NamedTuple):
    """PEM files of one end of a TLS connection; empty: none. Precedent of the names: ``ssl.SSLContext.load_cert_chain``, AMQP's URLs."""

    #: CAs that sign the other end's certificates; for a client instead of the machine's.
    cafile: str = ""
    #: Its own certificate with the chain to a CA, and the key.
    certfile: str = ""
    keyfile: str = ""


class Security(NamedTuple):
    """How a client connects: with what TLS, and as whom."""

    #: None: without TLS.
    tls: TlsFiles | None = None
    #: Empty: nobody; requests are not signed.
    user: str = ""
    #: A file with the user's secret; empty: it is given in another way.
    secretfile: str = ""


#: Without TLS, as nobody.
PLAIN: Final = Security()


class ServerUrl(NamedTuple):
    """What a URL says."""

    servers: tuple[Address, ...]
    security: Security = PLAIN

    @property
    def shown(self) -> str:
        """For texts: without user and files, since a token may have been taken for a user."""
        return f"{_PLAIN if self.security.tls is None else _TLS}://{self.addresses}"

    @property
    def addresses(self) -> str:
        """Of the servers, as in NAMESRV_ADDR."""
        return ";".join(map(str, self.servers))


def parse_url(url: str) -> ServerUrl:
    """Parse the URL of some servers.

    Raises:
        UsageError: another scheme, no address, or something that may be a secret.
    """
    if not isinstance(url, str):
        raise UsageError(f"{type(url).__name__} is no address", hint='"rocketmq://host:port", or Client.from_env()')
    found = _URL.fullmatch(url.strip())
    assert found is not None
    scheme, rest = found["scheme"], found["rest"]
    rest, is_more, parameters = rest.partition("?")
    user, at, servers = rest.rpartition("@")
    # What is before an @ may be a password with any of the delimiters in it, and so may parameters.
    if (at and not _USER.fullmatch(user)) or "#" in rest or "@" in parameters:
        raise _secret(scheme)
    if scheme not in (None, _PLAIN, _TLS):
        raise UsageError(f"url {_hidden(scheme)!r} has a scheme that is not supported", hint=_HINT)
    addresses = tuple(parse_address(part) for part in re.split("[;,]", servers.rstrip("/")) if part.strip())
    if not addresses:
        raise UsageError("url names no server", hint=_HINT)
    files = _files(scheme, parameters) if is_more else {}
    secretfile = files.pop("secretfile", "")
    if secretfile and not user:
        raise UsageError("url has a secretfile, and names no user", hint="rocketmq://user@host:port?secretfile=FILE")
    tls = TlsFiles(**files) if scheme == _TLS else None
    return ServerUrl(addresses, Security(tls, user, secretfile))


def _files(scheme: str | None, parameters: str) -> dict[str, str]:
    try:
        given = parse_qsl(parameters, keep_blank_values=True, strict_parsing=True, errors="strict")
    except ValueError:
        raise _secret(scheme) from None
    files = dict(given)
    known = {"secretfile", *(TlsFiles._fields if scheme == _TLS else ())}
    if len(files) < len(given) or not files.keys() <= known or not all(files.values()):
        raise _secret(scheme)
    if ("certfile" in files) != ("keyfile" in files):
        raise UsageError("certfile and keyfile of a url belong together", hint=_HINT_OF_TLS)
    return files


def _secret(scheme: str | None) -> UsageError:
    """What is there is not shown: it may be a secret."""
    hint = _HINT_OF_TLS if scheme == _TLS else f"{_HINT}, or with a user: rocketmq://user@host:port?secretfile=FILE"
    return UsageError(f"url {_hidden(scheme)!r} has a password, or parameters that are not supported", hint=hint)


def parse_address(text: str, default_port: int | None = DEFAULT_PORT) -> Address:
    """Parse ``host``, ``host:port`` or ``[v6]:port``. Without ``default_port`` there is a port, as in what brokers tell of themselves; then
    an IPv6 address needs no brackets, since the port is what follows the last colon.

    Raises:
        UsageError: not an address.
    """
    text = text.strip()
    found = _BRACKETED.fullmatch(text)
    if found is not None:
        host, port = _host(found["host"]), found["port"]
        is_host = _is_v6(host)
    else:
        name, colon, port = text.rpartition(":")
        host, is_whole = _host(name), default_port is not None and _is_v6(_host(text))
        if is_whole and _is_v6(host) and _is_port(port):
            raise UsageError("an IPv6 address of a url may end with its port", hint="[v6]:port")
        if is_whole or not colon:
            host, port = _host(text), None
        is_host = _is_v6(host) if ":" in host else _HOST_NAME.fullmatch(host) is not None
    if not is_host:  # not shown: it may be, or be followed by, a password
        raise UsageError("an address of a url is neither a host name nor an IP address", hint="host:port, or [v6]:port")
    if port is None and default_port is not None:
        return Address(host, default_port)
    if port is None or not _is_port(port):  # the text after the colon is not shown: it may be a password
        raise UsageError(f"what follows {host!r} in a url is not a port", hint="host:port")
    return Address(host, int(port))


def _host(text: str) -> str:
    """As the system's resolver takes it: with ``%`` before the zone of an IPv6 address."""
    address, percent, zone = text.partition("%")
    encoded = zone.startswith("25") and len(zone) > 2
    return f"{address}{percent}{zone.removeprefix('25') if encoded else zone}"


def ip_of(host: str) -> IPv4Address | IPv6Address | None:
    """The IP address that a host is; None: it is a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def _is_v6(host: str) -> bool:
    return isinstance(ip_of(host), IPv6Address)


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) < 65_536


def _hidden(scheme: str | None) -> str:
    return "***" if scheme is None else f"{scheme}://***"
