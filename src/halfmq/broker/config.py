"""The broker's configuration, with usable defaults. The caller decides where values come from (flags, tests)."""

import enum
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any, Final, NamedTuple

from msgspec.structs import replace as replace_fields

from halfmq import limits
from halfmq.errors import UsageError
from halfmq.model.address import TlsFiles, ip_of
from halfmq.model.placement import SEGMENT_BYTES_DEFAULT, SEGMENT_BYTES_MIN
from halfmq.model.runtime_settings import RUNTIME, SettingValue
from halfmq.model.settings import BrokerSettings, caps, caps_that_fit, segment_bytes_for
from halfmq.model.shown_settings import ShownSetting
from halfmq.store.store import Durability

#: RocketMQ's ``listenPort`` of broker and name server.
BROKER_PORT: Final = 10_911
NAME_PORT: Final = 9_876
CHECKPOINT_INTERVAL_MS: Final = 5_000
#: Time that a drain waits for clients to disconnect before it closes their connections, ms.
DRAIN_MS: Final = 300
#: RocketMQ's ``fileReservedTime`` = 72 hours.
RETENTION_MS: Final = 72 * 3_600_000
RETENTION_CHECK_MS: Final = 10_000
#: The audit log in the directory of the store.
AUDIT_NAME: Final = "audit.jsonl"
_AUDIT_BYTES_MIN: Final = 1 << 20
_AUDIT_FILES_MOST: Final = 1_000
#: Source of a setting that neither an option, the environment nor a file gave.
BY_PROGRAM: Final = "given by the program"
_LOOPBACK: Final = "127.0.0.1"
_BROADCAST: Final = IPv4Address("255.255.255.255")
#: A last label of digits after others is an IPv4 address, and a wrong one here. Invalid labels make resolvers raise. A single label of
#: digits may be the name of a container.
_HOST_NAME: Final = re.compile(r"(?!.+\.[0-9]+\.?\Z)([A-Za-z0-9_-]{1,63}\.)*[A-Za-z0-9_-]{1,63}\.?")
#: Hints of ``BrokerConfig.checked``.
_FOUR_FRAMES: Final = "{least} or more, which is four of the largest frames"
_INTERVAL: Final = "1 to {interval_max} ms, which is the longest interval"
_YEAR: Final = "at most {most} ms, which is a year"


class TlsMode(enum.Enum):
    """What is done about connections without TLS, where there is a certificate."""

    REQUIRED = "required"
    PERMISSIVE = "permissive"


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """``port`` and ``name_port`` 0: any free port. ``advertise_host``: host in routes for clients; None: see ``advertised``."""

    data: Path
    #: Addresses or names of this machine to listen on; ``::`` is every address of it, also IPv4.
    hosts: tuple[str, ...] = ("127.0.0.1",)
    port: int = BROKER_PORT
    name_port: int = NAME_PORT
    #: Port for health and undecided transactions over HTTP; 0: any free port; None: no HTTP.
    http_port: int | None = None
    #: Names of each kind (topics, groups, queries) with series of their own in ``/metrics``; others are summed.
    metrics_names_max: int = limits.METRICS_NAMES_MAX
    #: Further names under which clients address the HTTP port, as a proxy's or a service's.
    http_host_names: tuple[str, ...] = ()
    #: Also listen on ``port`` - 2, if that is free (RocketMQ ``fastListenPort``).
    vip_channel: bool = True
    advertise_host: str | None = None
    durability: Durability = Durability.FSYNC
    #: Name or number of the group whose members may read the store; None: only the broker's account.
    store_group: str | None = None
    segment_bytes: int = SEGMENT_BYTES_DEFAULT
    checkpoint_interval_ms: int = CHECKPOINT_INTERVAL_MS
    #: Segments older than this are trimmed; 0: no limit by age.
    retention_ms: int = RETENTION_MS
    #: The log is trimmed to about this number of bytes; 0: no limit by size.
    retention_bytes: int = 0
    retention_check_ms: int = RETENTION_CHECK_MS
    #: No consumer group holds more of the log than this number of bytes; None: ``retention.hold_bytes_of``; 0: as much as the disk has
    #: space for.
    hold_bytes: int | None = None
    #: Trust the clock at this start and at earlier ones: ages include its jumps.
    trust_clock: bool = False
    #: Retention by size is delayed by messages that it copied forward less than this ago; see ``core.copies``.
    copy_again_ms: int = limits.COPY_AGAIN_MS
    #: With less free space than this, new messages are refused.
    disk_reserve_bytes: int = limits.DISK_RESERVE_BYTES
    #: Maximum number of connections; further ones are closed.
    connections_max: int = limits.CONNECTIONS_MAX
    #: Maximum from one address; None: three quarters of all.
    connections_per_address_max: int | None = None
    #: Maximum bytes of partially received requests, over all connections; near it, senders get back-pressure.
    unfinished_bytes_max: int = limits.UNFINISHED_BYTES_MAX
    #: Maximum bytes of responses that clients do not read, over all connections; near it, clients that read nothing are closed.
    outgoing_bytes_max: int = limits.OUTGOING_BYTES_MAX
    drain_ms: int = DRAIN_MS
    #: PEM files of every port: certificate with its chain, key, and the CAs of clients, which then need a certificate. None: no TLS.
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    tls_mode: TlsMode = TlsMode.REQUIRED
    #: Key with which the secrets of users are kept; the broker has users, and everybody must be one. None: no users.
    secrets_key_file: Path | None = None
    #: Other machines may connect though there are no users, or no TLS.
    insecure: bool = False
    #: File of the audit log; None: see ``audit_file``. Its size, and the number of older ones that are kept.
    audit_log: Path | None = None
    audit_log_bytes: int = limits.AUDIT_BYTES_MAX
    audit_log_files: int = limits.AUDIT_FILES_MAX
    #: Settings of decisions; the broker sets ``store_host`` and ``segment_bytes`` in it.
    settings: BrokerSettings = field(default_factory=BrokerSettings)
    #: What the caller was given, by name, with the source of each; empty if it does not say. Nothing is decided by it.
    given: Mapping[str, ShownSetting] = field(default_factory=dict, compare=False)

    def checked(self) -> "BrokerConfig":
        """This configuration, if it is valid.

        Raises:
            UsageError: with the setting and its valid range.
        """
        for is_broken, text, hint in _rules(self):
            if is_broken:
                raise UsageError(text, hint=hint)
        check_caps(replace(self.settings, segment_bytes=self.segment_bytes))
        return self

    def tls_files(self) -> TlsFiles | None:
        """Of the ports; None: no TLS."""
        if self.tls_cert is None:
            return None
        return TlsFiles(*(str(file or "") for file in (self.tls_client_ca, self.tls_cert, self.tls_key)))

    def audit_file(self) -> Path | None:
        """Of the audit log: as configured, else in the directory of the store if there are users; None: there is none."""
        if self.audit_log is None and self.secrets_key_file is not None:
            return self.data / AUDIT_NAME
        return self.audit_log

    def unprotected(self) -> tuple[str, ...]:
        """What is missing, in words with the options, for other machines to connect; empty if nothing is, or none can connect."""
        if all(map(_is_loopback, self.hosts)):
            return ()
        no_users = self.secrets_key_file is None
        no_tls = self.tls_cert is None or self.tls_mode is not TlsMode.REQUIRED
        tls = "TLS (--tls-cert, --tls-key)" if self.tls_cert is None else "required TLS (--tls-mode required)"
        return ("users (--secrets-key-file)",) * no_users + (tls,) * no_tls

    def vip_port(self) -> int | None:
        """Port for Java clients before 4.5.1 and all with ``vipChannelEnabled``; None: not used.

        Also None if the name server has that port, since both ports accept every command, or if HTTP has it.
        """
        port = self.port - 2
        return port if self.vip_channel and port > 0 and port not in (self.name_port, self.http_port) else None

    def advertised(self) -> str:
        """The advertised host: as configured, else the first one that other machines can reach, else this machine's loopback address."""
        if self.advertise_host is not None:
            return self.advertise_host
        reached = next((host for host in self.hosts if not _is_wildcard(host) and not _is_loopback(host)), None)
        if reached is not None:
            return reached
        if any(map(_is_wildcard, self.hosts)) or self.hosts[:1] in ((), ("localhost",)):
            return _LOOPBACK
        return self.hosts[0]

    def advertises_loopback_for_everywhere(self) -> bool:
        """Whether remote clients can connect but get the loopback address, because no host to advertise is configured."""
        return self.advertise_host is None and any(map(_is_wildcard, self.hosts)) and _is_loopback(self.advertised())

    def http_names(self) -> set[str]:
        """Host names under which the HTTP port is served, besides addresses and ``localhost``."""
        advertised = () if self.advertise_host is None else (self.advertise_host,)
        return {*self.hosts, *advertised, *self.http_host_names}


class _Rule(NamedTuple):
    """Of a configuration; the first one that is broken is said."""

    is_broken: bool
    text: str
    hint: str


def _rules(config: BrokerConfig) -> Iterator[_Rule]:
    """In this order: later ones may rely on those before."""
    yield _Rule(
        not SEGMENT_BYTES_MIN <= config.segment_bytes < 1 << 31 or config.segment_bytes % SEGMENT_BYTES_MIN != 0,
        f"segment bytes {config.segment_bytes} not possible", f"a multiple of {SEGMENT_BYTES_MIN}, below 2 GiB",
    )  # fmt: skip
    yield from _host_rules(config)
    yield from _port_rules(config)
    yield from _number_rules(config)
    yield from _tls_rules(config)
    yield from _access_rules(config)


def _host_rules(config: BrokerConfig) -> Iterator[_Rule]:
    yield _Rule(not config.hosts, "no host to listen on", "--host 127.0.0.1, or :: for all addresses")
    ours = "an address or name of this machine; :: for all, 0.0.0.0 for all of IPv4"
    theirs = "an address or name by which clients reach this machine"
    listened = [("host", host, True, ours) for host in config.hosts]
    for name, host, everywhere, what in (*listened, ("advertised host", config.advertised(), False, theirs)):
        yield _Rule(
            not _is_host(host, everywhere=everywhere),
            f"{name} {host!r} not possible", f"{what}; IPv6 without brackets, no port",
        )  # fmt: skip
        yield _Rule(
            _lacks_zone(host),
            f"{name} {host!r} is link-local, and does not say on which interface",
            f"{host}%INTERFACE, as in {host}%eth0; ip -6 address lists them",
        )
    for name in config.http_host_names:
        yield _Rule(
            _HOST_NAME.fullmatch(name) is None,
            f"HTTP host name {name!r} not possible", "a name without port; addresses need none",
        )  # fmt: skip


def _port_rules(config: BrokerConfig) -> Iterator[_Rule]:
    taken: dict[int, str] = {}
    for name, port in (("port", config.port), ("name port", config.name_port), ("HTTP port", config.http_port or 0)):
        yield _Rule(not 0 <= port <= 65_535, f"{name} {port} not possible", "0 (any free port) to 65535")
        yield _Rule(
            port != 0 and port in taken,
            f"{taken.get(port)} and {name} are both {port}", "give each a port of its own, or 0 for any free one",
        )  # fmt: skip
        taken[port] = name


def _number_rules(config: BrokerConfig) -> Iterator[_Rule]:
    settings, year_ms = config.settings, limits.CHECK_TIMES_MAX_MS
    interval_max_ms = settings.check_interval_max_ms
    per_address_max = 1 if config.connections_per_address_max is None else config.connections_per_address_max
    for value, least, text, hint in (
        (config.disk_reserve_bytes, 0, "disk reserve {} bytes not possible", "0 or more"),
        (config.connections_max, 1, "{} connections at most: nobody could connect", "1 or more"),
        (per_address_max, 1, "{} connections per address at most: nobody could connect", "1 or more"),
        (config.unfinished_bytes_max, limits.UNFINISHED_BYTES_MIN,
         "{} bytes of unfinished requests at most: a large request could not be received", _FOUR_FRAMES),
        (config.outgoing_bytes_max, limits.OUTGOING_BYTES_MIN,
         "{} bytes of unread responses at most: a large response could not be sent", _FOUR_FRAMES),
        (config.checkpoint_interval_ms, 1, "checkpoint interval {} ms not possible", "at least 1 ms"),
        (config.retention_check_ms, 1, "retention check interval {} ms not possible", "at least 1 ms"),
        (settings.check_immunity_ms, 0, "check immunity {} ms not possible", "0 or more"),
        (settings.check_interval_ms, 1, "check interval {} ms not possible", _INTERVAL),
        (settings.check_answer_ms, 1, "response timeout of a check {} not possible: nobody would be asked", "1 or more"),
        (settings.checks_in_flight_max, 1, "number of checks in flight {} not possible: nobody would be asked", "1 or more"),
        (min(settings.undecided_max, settings.undecided_bytes_max), 0,
         "limits of undecided transactions must not be negative", "0 refuses all transactions"),
        (min(settings.undecided_total_max, settings.undecided_total_bytes_max, settings.undecided_groups_max), 0,
         "limits of all undecided transactions must not be negative", "0 refuses all transactions"),
        (settings.delayed_total_max, 0, "the limit of delayed messages must not be negative", "0 takes none"),
        (settings.queries_max, 0, "the limit of queries must not be negative", "0 takes none"),
        (settings.dedup_window_ms, 0, "the deduplication window must not be negative", "0 disables deduplication"),
        (min(config.retention_ms, config.retention_bytes, config.copy_again_ms), 0, "the retention must not be negative", "0 keeps everything"),
        (config.audit_log_bytes, _AUDIT_BYTES_MIN, "audit log of {} bytes not possible", "{least} or more, which is 1 MiB"),
        (config.metrics_names_max, 0, "{} names in metrics at most not possible", "0 or more"),
        (config.audit_log_files, 0, "{} older files of the audit log not possible", "0 or more"),
        (config.hold_bytes or 0, 0, "--hold-bytes must not be negative", "0: until the disk is nearly full"),
    ):  # fmt: skip
        yield _Rule(value < least, text.format(value), hint.format(least=least, interval_max=interval_max_ms))
    for value, most, name, hint in (
        (settings.check_interval_ms, interval_max_ms, "check interval", _INTERVAL),
        (settings.check_immunity_ms, year_ms, "check immunity", _YEAR),
        (interval_max_ms, year_ms, "longest check interval", _YEAR),
        (settings.check_answer_ms, year_ms, "response timeout of a check", _YEAR),
        (settings.dedup_window_ms, year_ms, "deduplication window", _YEAR),
    ):
        yield _Rule(value > most, f"{name} {value} ms not possible", hint.format(most=most, interval_max=most))
    yield _Rule(
        config.metrics_names_max > limits.METRICS_NAMES_MOST,
        f"{config.metrics_names_max} names in metrics at most not possible", f"at most {limits.METRICS_NAMES_MOST}",
    )  # fmt: skip
    yield _Rule(
        config.audit_log_files > _AUDIT_FILES_MOST,
        f"{config.audit_log_files} older files of the audit log not possible", f"at most {_AUDIT_FILES_MOST}",
    )  # fmt: skip


def _tls_rules(config: BrokerConfig) -> Iterator[_Rule]:
    yield _Rule(
        (config.tls_cert is None) != (config.tls_key is None),
        "--tls-cert and --tls-key belong together", "a certificate, and its key: PEM files",
    )  # fmt: skip
    yield _Rule(
        config.tls_cert is None and config.tls_client_ca is not None,
        "--tls-client-ca without --tls-cert", "clients show certificates over TLS only",
    )  # fmt: skip
    yield _Rule(
        config.tls_client_ca is not None and config.tls_mode is TlsMode.PERMISSIVE,
        "--tls-client-ca with --tls-mode permissive: who connects without TLS would need no certificate",
        "--tls-mode required",
    )


def _access_rules(config: BrokerConfig) -> Iterator[_Rule]:
    file = config.secrets_key_file
    yield _Rule(
        file is not None and Path(os.path.abspath(config.data)) in Path(os.path.abspath(file)).parents,
        f"--secrets-key-file {file} is in the directory of the store: whoever has a copy of it would have the key as well",
        "a file elsewhere, which backups of the store do not contain",
    )
    missing = config.unprotected()
    beyond = next((host for host in config.hosts if not _is_loopback(host)), "")
    yield _Rule(
        bool(missing) and not config.insecure,
        f"--host {beyond} lets other machines connect, without {' and without '.join(missing)}",
        "add what is missing; or --insecure, if a firewall or a private network decides who connects; or --host 127.0.0.1",
    )


#: A hundred years; for unlimited retention use 0.
_RETENTION_HOURS_MAX: Final = 876_600
_OF_DECISIONS: Final = frozenset({one.name for one in fields(BrokerSettings)})


def retention_ms_of(hours: float) -> int:
    """The age of what retention removes, ms.

    Raises:
        UsageError: no such retention is possible.
    """
    if not 0 <= hours <= _RETENTION_HOURS_MAX:  # also true for NaN
        raise UsageError(
            f"retention hours {hours} not possible", hint=f"0 to {_RETENTION_HOURS_MAX:,} hours; 0: no limit"
        )
    return max(1, round(hours * 3_600_000)) if hours else 0  # 0 ms would be no limit


def configured_value(config: BrokerConfig, name: str) -> SettingValue:
    """The value of an option that may change while the broker runs."""
    if name == "retention_hours":
        return config.retention_ms / 3_600_000
    value: SettingValue = getattr(config.settings if name in _OF_DECISIONS else config, name)
    return value


def with_setting(config: BrokerConfig, name: str, value: SettingValue) -> BrokerConfig:
    """The configuration with another value of such an option.

    Raises:
        UsageError: the value is not possible. ``checked`` finds others.
    """
    given: Any = value
    if name == "retention_hours":
        return replace(config, retention_ms=retention_ms_of(given))
    if name in _OF_DECISIONS:
        return replace(config, settings=replace(config.settings, **{name: given}))
    return replace(config, **{name: given})


def shown_settings(
    config: BrokerConfig, settings: BrokerSettings, ports: Mapping[str, int | None]
) -> dict[str, ShownSetting]:
    """``config.given``, or the settings of a program that says no sources, with the values that the broker really has: a store keeps the
    size of its segments, and the system may give fewer connections, or choose ports. ``settings``: of the state.
    """
    maximum = caps(settings)
    actual = {
        **{one.name: getattr(settings, one.name) for one in fields(settings)},
        "topics_max": maximum.topics,
        "groups_max": maximum.groups,
        "connections_max": config.connections_max,
        **ports,
    }
    return {
        name: replace_fields(one, value=actual[name]) if name in actual else one
        for name, one in (config.given or _of_program(config)).items()
    }


def _of_program(config: BrokerConfig) -> dict[str, ShownSetting]:
    """Each option with its value in ``config``. Those of a process alone, as of its log, have none."""
    values, defaults = _by_option(config), _by_option(BrokerConfig(config.data))
    return {
        name: ShownSetting(
            values.get(name),
            "default" if name != "data" and values.get(name) == defaults.get(name) else BY_PROGRAM,
        )
        for name in RUNTIME
    }


def _by_option(config: BrokerConfig) -> dict[str, Any]:
    """As in a configuration file."""
    found = {one.name: getattr(config.settings, one.name) for one in fields(config.settings)}
    found |= {one.name: getattr(config, one.name) for one in fields(config)}
    found |= {
        "host": list(config.hosts), "http_host_name": list(config.http_host_names) or None,
        "retention_hours": configured_value(config, "retention_hours"),
    }  # fmt: skip
    return {
        name: str(value) if isinstance(value, Path) else value.value if isinstance(value, enum.Enum) else value
        for name, value in found.items()
    }


def check_caps(settings: BrokerSettings) -> None:
    """Check ``settings`` with the actual segment size.

    Raises:
        UsageError: the configured number of topics or consumer groups may not fit in the base of such a segment.
    """
    fit = caps_that_fit(settings)
    for what, flag, asked, most in (
        ("topics", "--topics-max", settings.topics_max, fit.topics),
        ("consumer groups", "--groups-max", settings.groups_max, fit.groups),
    ):
        if asked < -1:
            raise UsageError(f"{flag} {asked}: invalid number of {what}", hint="0 or more")
        if asked > most:
            needed = segment_bytes_for(settings)
            instead = (
                f"a new store with --segment-bytes {needed}" if needed < 1 << 31 else "no segment size is large enough"
            )
            raise UsageError(
                f"{flag} {asked}: a segment of {settings.segment_bytes} bytes guarantees space for {most} {what} only",
                hint=f"{flag} {most}, or {instead}",
            )


def _is_host(text: str, *, everywhere: bool) -> bool:
    """Whether it can be an IP address of a machine or a name; ``everywhere``: also a wildcard address."""
    address = ip_of(text)
    if address is None:
        return _HOST_NAME.fullmatch(text) is not None
    if address.is_multicast or address == _BROADCAST:
        return False  # a socket can be bound to it, but no client can connect
    return everywhere or not address.is_unspecified


def _is_wildcard(host: str) -> bool:
    address = ip_of(host)
    return address is not None and address.is_unspecified


def _is_loopback(host: str) -> bool:
    address = ip_of(host)
    return host == "localhost" if address is None else address.is_loopback


def zone_of(host: str) -> str | None:
    """The interface of a link-local address, which means something on one machine only; None: there is none."""
    address = ip_of(host)
    return address.scope_id if isinstance(address, IPv6Address) else None


def _lacks_zone(host: str) -> bool:
    address = ip_of(host)
    return isinstance(address, IPv6Address) and address.is_link_local and address.scope_id is None


def packed_host(host: str, port: int) -> bytes:
    """``storeHost`` of RocketMQ: 4 or 16 bytes of IP, int32 port. A name that is not an address is encoded as 127.0.0.1."""
    return (ip_of(host) or IPv4Address("127.0.0.1")).packed + port.to_bytes(4, "big")
