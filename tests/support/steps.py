"""Runs computations that may be interrupted (``halfmq.model.steps``) to their end."""

from halfmq.model.steps import Steps, T


def result_of(steps: Steps[T]) -> T:
    """The result, without interruption."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
