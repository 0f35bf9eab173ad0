"""The savepoints of one transaction, followed by its statements."""

from halfmq.sql.rules.statements import Effect, read


class Savepoint:
    """A savepoint that was set on the guarded connection."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class Savepoints:
    """Which savepoints are open. Call ``executed`` after each statement."""

    def __init__(self) -> None:
        #: Outermost first.
        self.open: tuple[Savepoint, ...] = ()
        #: The statement that rolled back to a savepoint that was not seen; empty: none. What was undone with it is unknown.
        self.unknown_rollback = ""

    def executed(self, statement: str, product: str) -> Savepoint | None:
        """Returns the savepoint that ``statement`` has rolled back to: what belongs to it is undone."""
        found = read(statement, product)
        if found is None:
            return None
        name, open_ones = found.savepoint, self.open
        if found.effect is Effect.SAVEPOINT:
            self.open = (*open_ones, Savepoint(name))
            return None
        for place in range(len(open_ones) - 1, -1, -1):
            if open_ones[place].name == name:
                if found.effect is Effect.RELEASE:
                    self.open = open_ones[:place]
                    return None
                self.open = open_ones[: place + 1]
                return open_ones[place]
        if found.effect is Effect.ROLLBACK_TO:
            # Set on the driver's connection, or behind another statement in one string.
            self.unknown_rollback = statement
        return None
