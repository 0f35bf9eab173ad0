"""A ``MarkerTable`` that records in the flight recorder how far each transaction has got.

It also releases the worker's turn on the database as soon as the local transaction is decided. Everything else is
delegated to the real marker table.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from demo.flight_recorder import Counter, FlightRecorder, Phase
from demo.turns import Turn
from halfmq.client.marker_table import BlockingTransactionCalls, TransactionBlock
from halfmq.client.outcome import Outcome
from halfmq.client.outgoing import OutgoingMessage
from halfmq.client.receipts import Prepared, TransactionReceipt
from halfmq.sql import MarkerTable


class WatchedCalls:
    """The client's calls; each one records its phase."""

    def __init__(self, client: BlockingTransactionCalls, note: Callable[[Phase], None]) -> None:
        self._client = client
        self._note = note
        self.group = client.group

    def new_transaction_id(self) -> str:
        return self._client.new_transaction_id()

    def prepare(
        self,
        messages: Sequence[OutgoingMessage],
        *,
        tx_id: str,
        name: str = "",
        query_id: str = "",
        timeout: float | None = None,
    ) -> Prepared:
        self._note(Phase.SENDING)
        prepared = self._client.prepare(messages, tx_id=tx_id, name=name, query_id=query_id, timeout=timeout)
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


class WatchedMarkers:
    """Pass it wherever a marker table is expected. Each thread must call ``working_on`` before it opens a block."""

    def __init__(self, markers: MarkerTable, recorder: FlightRecorder) -> None:
        self._markers = markers
        self._recorder = recorder
        self._here = threading.local()

    @property
    def name(self) -> str:
        return self._markers.name

    def working_on(self, worker: int, basket_id: int, turn: Turn) -> None:
        self._here.worker, self._here.basket_id, self._here.turn = worker, basket_id, turn
        self._recorder.enter(worker, Phase.LOCAL, basket_id)

    def bind(
        self, client: BlockingTransactionCalls, session: Any, *, query_id: str = "", timeout: float | None = None
    ) -> AbstractContextManager[TransactionBlock]:
        worker, basket_id, turn = self._here.worker, self._here.basket_id, self._here.turn

        def note(phase: Phase) -> None:
            self._recorder.enter(worker, phase, basket_id)
            if phase is Phase.TELLING:
                turn.give()

        return self._markers.bind(WatchedCalls(client, note), session, query_id=query_id, timeout=timeout)

    def bind_async(self, client: Any, session: Any, *, query_id: str = "", timeout: float | None = None) -> Any:
        return self._markers.bind_async(client, session, query_id=query_id, timeout=timeout)

    def checker(self, sessions: Any) -> Any:
        check = self._markers.checker(sessions)

        def counted(transaction: Any) -> Outcome:
            outcome = check(transaction)
            assert isinstance(outcome, Outcome)
            self._recorder.count(_OUTCOMES[outcome])
            return outcome

        return counted
