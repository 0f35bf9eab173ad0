"""What may change of the settings of a broker that runs, and what an administrator changed.

``RUNTIME`` has every option of `halfmq serve`: either the type of a value that may change, or why it stays. A change is durable state:
a record with the name, the value, and the value that the configuration had then (decision 0082).
"""

from typing import Final, NamedTuple

from msgspec import Struct

from halfmq.model.settings import BrokerSettings

#: Of a setting that may change; None: none, which only a configuration has.
SettingValue = bool | int | float | None
#: An integer of a record.
SETTING_MAX: Final = (1 << 63) - 1


class RecordedSetting(Struct, frozen=True, gc=False, array_like=True):
    """A setting as an administrator set it. A base and a snapshot contain it as an array of its fields, in this order."""

    value: SettingValue
    #: What the configuration said when it was set. The value holds while it says the same.
    configured: SettingValue
    #: Who set it, and when, broker time, ms.
    by: str
    at_ms: int


class Changes(NamedTuple):
    """The setting may change while the broker runs."""

    #: ``bool``, ``int`` or ``float``.
    kind: type
    #: Since when a change counts, as documents say it.
    effect: str


class Stays(NamedTuple):
    """The setting is that of the start."""

    why: str


_BOUND: Final = Stays("its ports are bound at the start")
_STORE: Final = Stays("the store is opened with it at the start")
_TLS: Final = Stays("ports are bound with TLS, or without; the files themselves are read again when they change")
_BASE: Final = Stays("the size of a segment decides how many there may be, and a start checks it")
_DIVIDED: Final = Stays("it is divided among connections by shares that the start computes")
_AUDIT: Final = Stays("the audit log is opened at the start, before the first request")
_LOG: Final = Stays("log lines are set up before the broker starts")
_NEXT_CHECK: Final = "from the next check of each transaction on; those that are scheduled keep their time"
_ADMITTED: Final = "from the next transaction on; what is undecided stays"
_NEXT_RUN: Final = "with the next check of the retention"

#: By option, in the order of `halfmq serve --help`.
RUNTIME: Final[dict[str, Changes | Stays]] = {
    "data": _STORE,
    "host": _BOUND,
    "port": _BOUND,
    "name_port": _BOUND,
    "http_port": _BOUND,
    "metrics_names_max": Stays("a name that has series keeps them for as long as it exists"),
    "http_host_name": Stays("the HTTP port is protected by it from its start on"),
    "vip_channel": _BOUND,
    "advertise_host": Stays("ids of messages contain the address"),
    "durability": Stays("responses say it, and those of before would promise something else"),
    "store_group": _STORE,
    "segment_bytes": _STORE,
    "checkpoint_interval_ms": Changes(int, "at once"),
    "retention_hours": Changes(float, _NEXT_RUN),
    "retention_bytes": Changes(int, _NEXT_RUN),
    "retention_check_ms": Changes(int, "at once"),
    "hold_bytes": Changes(int, _NEXT_RUN),
    "trust_clock": Stays("it is for one start"),
    "dedup_window_ms": Stays("a longer window could not find what was forgotten"),
    "disk_reserve_bytes": Changes(int, "at once"),
    "connections_max": Stays("the limit of open files bounds it, and places are reserved at the start"),
    "connections_per_address_max": _DIVIDED,
    "unfinished_bytes_max": _DIVIDED,
    "outgoing_bytes_max": _DIVIDED,
    "check_immunity_ms": Stays("the log has the grace period of each start"),
    "check_interval_ms": Changes(int, _NEXT_CHECK),
    "check_interval_max_ms": Changes(int, _NEXT_CHECK),
    "check_answer_ms": Changes(int, "for the checks that are sent from then on"),
    "checks_in_flight_max": Changes(int, "at once"),
    "undecided_max": Changes(int, _ADMITTED),
    "undecided_bytes_max": Changes(int, _ADMITTED),
    "undecided_total_max": Changes(int, _ADMITTED),
    "undecided_total_bytes_max": Changes(int, _ADMITTED),
    "undecided_groups_max": Changes(int, _ADMITTED),
    "delayed_total_max": Changes(int, "from the next message on; what is delayed stays"),
    "topics_max": _BASE,
    "groups_max": _BASE,
    "queries_max": Changes(int, "from the next query on; known ones stay"),
    "auto_create_topics": Changes(bool, "from the next request on"),
    "auto_create_groups": Changes(bool, "from the next request on"),
    "tls_cert": _TLS,
    "tls_key": _TLS,
    "tls_client_ca": _TLS,
    "tls_mode": _TLS,
    "secrets_key_file": Stays("the secrets of users are opened with it at the start"),
    "insecure": Stays("it allows a start that would be refused"),
    "audit_log": _AUDIT,
    "audit_log_bytes": _AUDIT,
    "audit_log_files": _AUDIT,
    "ports_file": Stays("it is written at the start"),
    "log_format": _LOG,
    "verbose": _LOG,
}
CHANGEABLE: Final = tuple(name for name, one in RUNTIME.items() if isinstance(one, Changes))


#: The type of a value that may change, as a refusal says it.
KIND_IN_WORDS: Final = {bool: "true or false", int: "a whole number", float: "a number"}


def contradiction(settings: BrokerSettings, name: str) -> str:
    """Why ``settings``, in which ``name`` was changed last, are no possible ones together, and what to do first; "": they are."""
    least, most = settings.check_interval_ms, settings.check_interval_max_ms
    if least <= most:
        return ""
    other = "check_interval_ms" if name == "check_interval_max_ms" else "check_interval_max_ms"
    return f"check_interval_ms {least} would be more than check_interval_max_ms {most}: change {other} first"
