"""Commands of several steps come to an end: each step makes what ``core.steps`` counts smaller, whatever was decided in between.

Checked at each step, since a broker that copies for ever does not get as far as the end of a history.
"""

from collections.abc import Callable, Iterable, Iterator

from halfmq.core.commands import Command, CopyForward
from halfmq.core.decision import Done
from halfmq.core.engine import Engine, Pace, Step
from halfmq.core.steps import STEPS
from halfmq.model.records import QueryForgotten
from tests.simulation.promises import Violation


def watch(engine: Engine, violated: Callable[[Violation], None], on_shortened: Callable[[str], None]) -> None:
    """Check every further step of ``engine``. ``on_shortened``: called with each query of which it forgets earlier decisions."""
    take_step = engine.step

    def step(commands: Iterable[Command], now_ms: int, pace: Pace | None = None) -> Step:
        begun: list[tuple[Command, int]] = []

        def each() -> Iterator[Command]:
            for command in commands:
                begun.append((command, _left(engine, command)))
                yield command

        taken = take_step(each(), now_ms, pace)
        for (command, before), reply in zip(begun, taken.replies, strict=False):
            if isinstance(reply, Done) and reply.again and type(command) in STEPS:
                left = _left(engine, command)
                # A copy forward also searches, in steps that copy nothing.
                if left > before or (left == before > 0 and type(command) is not CopyForward):
                    violated(
                        Violation(f"Progress: {type(command).__name__} has {left} left after a step, {before} before")
                    )
        for record in taken.batch.records if taken.batch is not None else ():
            if type(record) is QueryForgotten and not record.is_whole:
                on_shortened(record.name)
        return taken

    engine.step = step  # type: ignore[method-assign]


def _left(engine: Engine, command: Command) -> int:
    left = STEPS[type(command)].left if type(command) in STEPS else None
    return left(engine.state, command) if left is not None else 0
