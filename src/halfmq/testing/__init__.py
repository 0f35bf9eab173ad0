"""Testing services that use halfmq: the real broker in the test's process, what was sent, and crashes between any two steps.

docs/testing-your-service.md has recipes; the fixtures are in ``pytest_plugin``. ``halfmq.testing.history`` records and checks histories.
"""

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from halfmq.client.direct_delivery import Delivered as Delivered
    from halfmq.client.direct_delivery import Handling as Handling
    from halfmq.testing.broker import Broker as Broker
    from halfmq.testing.broker import Undecided as Undecided
    from halfmq.testing.broker import Waiting as Waiting
    from halfmq.testing.crashes import CRASH_POINTS as CRASH_POINTS
    from halfmq.testing.crashes import HANDLER_POINTS as HANDLER_POINTS
    from halfmq.testing.crashes import TRANSACTION_POINTS as TRANSACTION_POINTS
    from halfmq.testing.crashes import CrashPoint as CrashPoint
    from halfmq.testing.crashes import HandlerPoint as HandlerPoint
    from halfmq.testing.crashes import SimulatedCrash as SimulatedCrash
    from halfmq.testing.crashes import TransactionPoint as TransactionPoint
    from halfmq.testing.crashes import crash as crash
    from halfmq.testing.sent import Sent as Sent

#: Where each public name is; loaded on first use, since ``history`` needs no broker.
MODULES: Final = {
    "CRASH_POINTS": "testing.crashes",
    "HANDLER_POINTS": "testing.crashes",
    "TRANSACTION_POINTS": "testing.crashes",
    "Broker": "testing.broker",
    "CrashPoint": "testing.crashes",
    "Delivered": "client.direct_delivery",
    "HandlerPoint": "testing.crashes",
    "Handling": "client.direct_delivery",
    "Sent": "testing.sent",
    "SimulatedCrash": "testing.crashes",
    "TransactionPoint": "testing.crashes",
    "Undecided": "testing.broker",
    "Waiting": "testing.broker",
    "crash": "testing.crashes",
}

__all__ = sorted(MODULES)


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        value = getattr(import_module(f"halfmq.{MODULES[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "halfmq":
            raise
        from halfmq.errors import MissingDependency

        raise MissingDependency(f"{error.name} is not installed", hint="pip install 'halfmq[server]'") from error
    globals()[name] = value
    return value
