"""A time without any process of any service, longer than the age at which a policy parks transactions.

Undecided transactions grow old meanwhile, since the broker has no reachable producer. In some seeds it is killed during this
time, so that ages must come from the log.
"""

import random
from typing import TYPE_CHECKING

from tests.simulation.producers import Fetcher, Producer
from tests.simulation.stock_producer import StockProducer

if TYPE_CHECKING:
    from tests.simulation.run import Run


def pass_it(run: "Run") -> None:
    """Does nothing in seeds without an absence. Faults have ended before.

    Raises:
        Violation: as ``Run.pass_time``.
    """
    absence_ms = run.swarm.absence_ms
    if not absence_ms:
        return
    run.counts["knob absence"] += 1
    run.around.working = False
    run.faults.heal()
    away = [machine for machine in run.machines if isinstance(machine, Producer | StockProducer | Fetcher)]
    for machine in away:
        machine.stop()
    begins_ms = run.scheduler.now_us // 1_000
    run.pass_time(begins_ms + absence_ms // 2)
    if run.host.process is not None and random.Random(f"{run.swarm.seed}/absence").random() < 0.5:
        run.host.kill()
    run.pass_time(begins_ms + absence_ms)
    for machine in away:
        machine.stopped = False
        machine.start()
