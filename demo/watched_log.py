"""A ``TransactionLog`` that notes in the flight recorder how far each transaction is.

It also gives the worker's turn on the database away as soon as the local transaction is decided. Otherwise it changes
nothing.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from demo.flight_recorder import Counter, FlightRecorder, Phase
from demo.turns import Turn
from halfmq.client.outcome import Outcome
from halfmq.client.outgoing import OutgoingMessage
from halfmq.client.receipts import Prepared, TransactionReceipt
from halfmq.client.transaction_log import BlockingTransactionCalls, TransactionBlock
from halfmq.sql import TransactionLog


class WatchedCalls:
    """The client's calls, with a note before and after."""

    def __init__(self, client: BlockingTransactionCalls, note: Callable[[Phase], None]) -> None:
        self._client = client
        self._note = note
        self.group = client.group

    def new_transaction_id(self) -> str:
        return self._client.new_transaction_id()

    def prepare(
        self, messages: Sequence[OutgoingMessage], *, tx_id: str, name: str = "", query_id: str = ""
    ) -> Prepared:
        self._note(Phase.SENDING)
        prepared = self._client.prepare(messages, tx_id=tx_id, name=name, query_id=query_id)
        self._note(Phase.PREPARED)
        return prepared

    def commit(self, prepared: Prepared) -> TransactionReceipt:
        self._note(Phase.TELLING)
        return self._client.commit(prepared)

    def rollback(self, prepared: Prepared) -> TransactionReceipt:
        self._note(Phase.TELLING)
        return self._client.rollback(prepared)


_OUTCOMES = {
    Outcome.COMMIT: Counter.CHECKS_COMMIT,
    Outcome.ROLLBACK: Counter.CHECKS_ROLLBACK,
    Outcome.UNKNOWN: Counter.CHECKS_UNKNOWN,
}


class WatchedLog:
    """Use it wherever the log goes. Each thread calls ``working_on`` before it opens a block."""

    def __init__(self, log: TransactionLog, recorder: FlightRecorder) -> None:
        self._log = log
        self._recorder = recorder
        self._here = threading.local()

    @property
    def name(self) -> str:
        return self._log.name

    def working_on(self, worker: int, basket_id: int, turn: Turn) -> None:
        self._here.worker, self._here.basket_id, self._here.turn = worker, basket_id, turn
        self._recorder.enter(worker, Phase.LOCAL, basket_id)

    def bind(
        self, client: BlockingTransactionCalls, session: Any, *, query_id: str = ""
    ) -> AbstractContextManager[TransactionBlock]:
        worker, basket_id, turn = self._here.worker, self._here.basket_id, self._here.turn

        def note(phase: Phase) -> None:
            self._recorder.enter(worker, phase, basket_id)
            if phase is Phase.TELLING:
                turn.give()

        return self._log.bind(WatchedCalls(client, note), session, query_id=query_id)

    def bind_async(self, client: Any, session: Any, *, query_id: str = "") -> Any:
        return self._log.bind_async(client, session, query_id=query_id)

    def checker(self, sessions: Any) -> Any:
        check = self._log.checker(sessions)

        def counted(transaction: Any) -> Outcome:
            outcome = check(transaction)
            assert isinstance(outcome, Outcome)
            self._recorder.count(_OUTCOMES[outcome])
            return outcome

        return counted
