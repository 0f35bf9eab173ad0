"""When what fails: drawn from the seed, done to the world, counted."""

import random
from typing import TYPE_CHECKING

from halfmq.testing.history.events import Fault
from halfmq.testing.virtual_loop import ProcessLoop
from tests.simulation.machine import BROKER_PORT

if TYPE_CHECKING:
    from tests.simulation.run import Run


class Faults:
    def __init__(self, run: "Run") -> None:
        self.run = run
        self.dice = random.Random(f"{run.swarm.seed}/faults")
        self.over = False
        self.ghosts = 0

    def begin(self) -> None:
        self._next()

    def _next(self) -> None:
        pause_ms = self.dice.random() * 2 * self.run.swarm.fault_every_ms
        self.run.scheduler.call_later(int(pause_ms * 1_000) + 1, self._due)

    def _due(self) -> None:
        if self.over:
            return
        what = self.dice.choice(self.run.swarm.faults)
        getattr(self, what)()
        self._next()

    def note(self, what: str, whom: str = "", detail: str = "") -> None:
        run = self.run
        run.counts[f"fault {what}"] += 1
        run.chronicle.note(Fault(t_us=run.scheduler.now_us, by="world", what=what, whom=whom, detail=detail))

    def later(self, ms: int, what: object) -> None:
        self.run.scheduler.call_later(ms * 1_000, lambda: None if self.over else what())  # type: ignore[operator]

    # --- the broker --------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        host = self.run.host
        if host.process is not None:
            self.note("kill", host.process.name)
            host.kill()

    def power(self) -> None:
        host = self.run.host
        if host.process is not None and self.run.swarm.durability == "fsync":
            self.note("power", host.process.name)
            host.power_fails()

    def power_in_step(self) -> None:
        """In the middle of an operation of the disk, a drawn number of them from now."""
        host = self.run.host
        if host.process is not None and self.run.swarm.durability == "fsync":
            steps = self.dice.randint(1, 60)
            self.note("power_in_step", host.process.name, f"after {steps} operations")
            host.disk.power_fails_after(steps)

    def pause(self) -> None:
        host = self.run.host
        process = host.process
        if process is not None and not process.paused:
            span_ms = self.dice.choice((100, 1_000, 4_000))
            self.note("pause", process.name, f"{span_ms} ms")
            process.pause()
            self.later(span_ms, process.resume)

    def drain(self) -> None:
        host = self.run.host
        if host.serves:
            assert host.process is not None
            self.note("drain", host.process.name)
            host.serves = False
            host.drain()

    # --- the network -------------------------------------------------------------------------------------------------

    def reset(self) -> None:
        open_ends = self.run.network.connections()
        if open_ends:
            end = self.dice.choice(open_ends)
            self.note("reset", end.machine)
            self.run.network.reset(end)

    def _machine(self) -> str:
        return self.dice.choice(self.run.machines).name

    def partition(self) -> None:
        name = self._machine()
        self.note("partition", name)
        self.run.network.partition(name, to_server=True, to_client=True)
        self.later(self.dice.choice((200, 2_000, 5_000)), lambda: self.run.network.heal(name))

    def one_way(self) -> None:
        name = self._machine()
        to_server = self.dice.random() < 0.5
        self.note("one_way", name, "to the server" if to_server else "to the client")
        self.run.network.partition(name, to_server=to_server, to_client=not to_server)
        self.later(self.dice.choice((200, 2_000, 5_000)), lambda: self.run.network.heal(name))

    def stall(self) -> None:
        open_ends = self.run.network.connections()
        if open_ends:
            end = self.dice.choice(open_ends)
            self.note("stall", end.machine)
            self.run.network.stall(
                end, to_server=self.dice.random() < 0.5, for_us=self.dice.choice((100_000, 2_000_000))
            )

    def refuse(self) -> None:
        self.note("refuse")
        self.run.network.refuse(self.dice.choice((100_000, 1_500_000)))

    def repeat(self) -> None:
        """A request of the last minute comes once more, on a connection of its own."""
        recent = [one for one in self.run.tap.sent if one[0] > self.run.scheduler.now_us - 60_000_000]
        if recent:
            _, kind, frame = self.dice.choice(recent)
            self.ghosts += 1
            self.note("repeat", detail=kind)
            ghost = ProcessLoop(self.run.scheduler, f"ghost.{self.ghosts}", self.run._raised)
            self.run.network.repeat(ghost, len(frame).to_bytes(4, "big") + frame, BROKER_PORT)

    # --- clients and their databases ---------------------------------------------------------------------------------

    def client_kill(self) -> None:
        machine = self.dice.choice(self.run.machines)
        if machine.process is not None:
            self.note("client_kill", machine.process.name)
            machine.kill()

    def client_pause(self) -> None:
        machine = self.dice.choice(self.run.machines)
        process = machine.process
        if process is not None and not process.paused:
            span_ms = self.dice.choice((100, 1_000, 5_000))
            self.note("client_pause", process.name, f"{span_ms} ms")
            process.pause()
            self.later(span_ms, process.resume)

    def database_crash(self) -> None:
        database = self.dice.choice(list(self.run.databases.values()))
        if database.up:
            self.note("database_crash", database.name)
            database.crash()
            self.later(self.dice.choice((50, 500, 3_000)), database.back)

    def database_slow(self) -> None:
        database = self.dice.choice(list(self.run.databases.values()))
        self.note("database_slow", database.name)
        database.slow = 20

        def fast() -> None:
            database.slow = 1

        self.later(self.dice.choice((500, 3_000)), fast)

    def clock_step(self) -> None:
        clocks = {"broker": self.run.host.clock, **{machine.name: machine.clock for machine in self.run.machines}}
        whose = self.dice.choice(list(clocks))
        by_ms = self.dice.choice((-3_600_000, -5_000, -100, 100, 5_000, 50_000))
        self.note("clock_step", whose, f"{by_ms} ms")
        clocks[whose].step(by_ms)

    # --- the disk ----------------------------------------------------------------------------------------------------

    def write_error(self) -> None:
        self.note("write_error")
        self.run.host.disk.fail("write")

    def sync_error(self) -> None:
        if self.run.swarm.durability == "fsync":
            self.note("sync_error")
            self.run.host.disk.fail("sync")

    def full(self) -> None:
        self.note("full")
        disk = self.run.host.disk
        disk.fill(self.dice.choice((0, 20_000, 100_000)))
        self.later(self.dice.choice((1_000, 4_000)), lambda: disk.fill(1 << 40))

    def bit_flip(self) -> None:
        """Not yet."""

    # --- the end of it -----------------------------------------------------------------------------------------------

    def heal(self) -> None:
        self.over = True
        run = self.run
        run.network.heal()
        run.host.disk.heal()
        for database in run.databases.values():
            database.back()
            database.slow = 1
            database.answers_lost = 0.0
        if run.host.process is not None:
            run.host.process.resume()
        for machine in run.machines:
            if machine.process is not None:
                machine.process.resume()
