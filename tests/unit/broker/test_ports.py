"""Which ports a broker needs, which it starts without, and which it closes last. Sockets: test_listener.py."""

from collections.abc import Sequence
from typing import Any

import pytest

from halfmq.broker.listener import PortPlan
from halfmq.broker.ports import BoundPorts
from halfmq.errors import PortTaken


class Port:
    def __init__(self, port: int, *, listens: bool) -> None:
        self.port = port
        self.addresses = [f"127.0.0.1:{port}"]
        self.listens = listens
        self.done: list[str] = []

    def listen(self) -> None:
        if not self.listens:
            raise PortTaken("somebody listens", hint="another port")
        self.done.append("listen")

    def accept(self) -> None:
        self.done.append("accept")

    def close(self) -> None:
        self.done.append("close")


class Machine:
    """``taken``: ports that cannot be bound. ``lost``: ports on which another process listens before we do."""

    def __init__(self, *, taken: tuple[int, ...] = (), lost: tuple[int, ...] = ()) -> None:
        self.taken = taken
        self.lost = lost
        self.ports: dict[str, Port] = {}
        self.plans: list[PortPlan] = []

    async def bind(self, plan: PortPlan, hosts: Sequence[str]) -> Port:
        self.plans.append(plan)
        if plan.port in self.taken:
            raise PortTaken(f"the {plan.name} cannot listen on {hosts[0]}:{plan.port}", hint="another port")
        self.ports[plan.name] = made = Port(plan.port, listens=plan.port not in self.lost)
        return made


ADMIT: Any = object()
BROKER = PortPlan("broker", ADMIT, 10)
HEALTH = PortPlan("health", ADMIT, 20, closed_last=True)
OLD = PortPlan("old clients", ADMIT, 30, without="old clients cannot send")


async def bound(machine: Machine) -> BoundPorts:
    ports = BoundPorts(machine.bind, ("127.0.0.1",))
    await ports.bind([BROKER, HEALTH, OLD])
    return ports


async def test_a_port_is_bound_with_its_whole_plan() -> None:
    """So a further property of a port passes nothing on the way to its listener."""
    machine = Machine()
    await bound(machine)
    assert [*map(id, machine.plans)] == [*map(id, (BROKER, HEALTH, OLD))]


async def test_a_drain_leaves_open_what_is_closed_last() -> None:
    machine = Machine()
    ports = await bound(machine)
    assert [ports.number_of(name) for name in ("broker", "health", "old clients", "none")] == [10, 20, 30, None]
    ports.listen()
    ports.accept()
    ports.begin_drain()
    assert machine.ports["broker"].done == ["listen", "accept", "close"]
    assert machine.ports["health"].done == ["listen", "accept"]
    ports.close()
    assert machine.ports["health"].done == ["listen", "accept", "close"]


async def test_a_required_port_that_is_taken_ends_the_start() -> None:
    with pytest.raises(PortTaken, match="the broker cannot listen"):
        await bound(Machine(taken=(10,)))
    with pytest.raises(PortTaken, match="somebody listens"):
        (await bound(Machine(lost=(20,)))).listen()


@pytest.mark.parametrize("when", ["taken", "lost"])
async def test_the_start_goes_on_without_an_optional_port_and_tells_the_consequence(
    when: str, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine(taken=(30,) if when == "taken" else (), lost=(30,) if when == "lost" else ())
    ports = await bound(machine)
    ports.listen()
    ports.accept()
    assert ports.number_of("old clients") is None
    assert machine.ports["broker"].done == ["listen", "accept"]
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.endswith("; old clients cannot send")
    if when == "lost":
        assert machine.ports["old clients"].done == ["close"]
