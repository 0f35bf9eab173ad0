"""A client machine: one process at a time, restarted under the same name after it was killed."""

import random
from collections.abc import Callable, Coroutine
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from halfmq.client.async_client import AsyncClient
from halfmq.errors import HalfmqError
from halfmq.testing.history.events import Started
from tests.simulation.chronicle import Chronicle
from tests.simulation.database import DatabaseError
from tests.simulation.fence_rules import Fences
from tests.simulation.swarm import Swarm
from tests.support.faulty_network import FaultyNetwork
from tests.support.virtual_loop import ProcessLoop, Scheduler, SeededEntropy, VirtualClock

URL = "rocketmq://10.0.0.1:9876"
BROKER_PORT = 10_911


class ApplicationError(Exception):
    """The application's own code failed."""


#: Exceptions in a client that are not bugs.
Expected = (HalfmqError, DatabaseError, SQLAlchemyError, ApplicationError)


class Surroundings:
    """What all machines share."""

    def __init__(
        self,
        swarm: Swarm,
        scheduler: Scheduler,
        network: FaultyNetwork,
        chronicle: Chronicle,
        on_raised: Callable[[ProcessLoop, BaseException], None],
        fences: Fences,
    ) -> None:
        self.swarm = swarm
        self.scheduler = scheduler
        self.network = network
        self.chronicle = chronicle
        self.on_raised = on_raised
        self.fences = fences
        #: While True, clients start new work.
        self.working = True


async def in_place(function: Callable[..., Any], *args: Any) -> Any:
    """A ``RunBlocking`` without threads."""
    return function(*args)


class SimulatedClient(AsyncClient):
    """Our client in a simulated process."""

    process_number = 0

    def _whoami(self) -> tuple[str, int]:
        return "sim", self.process_number


class Machine:
    """``main`` is the work of its process."""

    def __init__(self, name: str, around: Surroundings) -> None:
        self.name = name
        self.around = around
        self.clock = VirtualClock(
            around.scheduler, random.Random(f"{around.swarm.seed}/{name}/clock").choice((0, -7_000, 90_000))
        )
        self.rng = random.Random(f"{around.swarm.seed}/{name}")
        self.lives = 0
        self.process: ProcessLoop | None = None
        self.stopped = False
        #: Number of application calls in progress.
        self.busy = 0

    async def main(self, process: ProcessLoop) -> None:
        raise NotImplementedError

    def died(self, process: ProcessLoop) -> None:
        """Notify the components that must know."""

    def start(self) -> None:
        self.lives += 1
        self.busy = 0
        process = self.process = ProcessLoop(self.around.scheduler, f"{self.name}.{self.lives}", self.around.on_raised)
        self.around.chronicle.note(Started(t_us=self.around.scheduler.now_us, by=process.name, whom=process.name))
        self.spawn(process, self.main(process))

    def spawn(self, process: ProcessLoop, work: Coroutine[Any, Any, None]) -> Any:
        """Start a task whose failure is a bug."""
        task = process.create_task(work)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: Any) -> None:
        if not task.cancelled() and task.exception() is not None and self.process is not None:
            self.around.on_raised(self.process, task.exception())

    def stop(self) -> None:
        """Stop it permanently."""
        self.kill()
        self.stopped = True

    def kill(self) -> None:
        process = self.process
        if process is not None:
            self.process = None
            process.kill()
            self.around.network.process_died(process)
            self.died(process)
            self.around.scheduler.call_later(self.rng.choice((50_000, 500_000, 3_000_000)), self._start_again)

    def _start_again(self) -> None:
        if self.process is None and not self.stopped:
            self.start()

    def client(self, process: ProcessLoop, group: str, *, fetches_checks: bool = False) -> SimulatedClient:
        swarm = self.around.swarm
        client = SimulatedClient(
            URL,
            group=group,
            timeout=swarm.call_timeout_ms / 1000,
            attempt_timeout=swarm.attempt_timeout_ms / 1000,
            connect_timeout=2.0,
            fetches_checks=fetches_checks,
            connector=self.around.network.connector(process, self.name),
            clock=self.clock,
            entropy=SeededEntropy(f"{swarm.seed}/{process.name}"),
            run_blocking=in_place,
        )
        client.process_number = 100 + self.lives
        return client
