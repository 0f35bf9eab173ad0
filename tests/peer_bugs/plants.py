"""Each bug of ``catalogue.py`` put back into halfmq, as a switch: ``with planted("name"): ...``.

A plant changes what the broker, the client or the database side does, and nothing of a test. It stays until the block
ends; brokers and clients must be started inside it. Where the bug's mechanism does not exist here, the plant does what
users suffered from it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from halfmq.broker import broker as broker_module
from halfmq.broker.sends import Sends
from halfmq.core import apply as apply_module
from halfmq.core.commands import Wanted
from halfmq.core.decision import Decision, Settled
from halfmq.core.transaction import machine, states
from halfmq.model.records import CarriedHalf, Committed
from halfmq.store.store import Store

Plant = Callable[[pytest.MonkeyPatch], None]
PLANTS: Final[dict[str, Plant]] = {}


def plant(function: Plant) -> Plant:
    """Into the table, under its own name."""
    PLANTS[function.__name__] = function
    return function


@contextmanager
def planted(name: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        PLANTS[name](patch)
        yield


# --- verdicts --------------------------------------------------------------------------------------------------


def _known_but_not_taken_out(state: Any, group: Any, tx_id: str) -> Any:
    return group.undecided.get(tx_id)


@plant
def verdict_leaves_the_half_undecided(patch: pytest.MonkeyPatch) -> None:
    """END looks the half up by its offset, and a verdict leaves it there: there is nothing that could be looked at."""
    patch.setattr(apply_module, "_settle", _known_but_not_taken_out)


@plant
def opposite_verdict_is_answered_with_success(patch: pytest.MonkeyPatch) -> None:
    conflicts = states.Outcome.CONFLICTS
    changed = {key: states.Outcome.REPEATS if what is conflicts else what for key, what in states.OUTCOMES.items()}
    patch.setattr(machine, "OUTCOMES", changed)


@plant
def moved_half_is_known_by_its_new_offset(patch: pytest.MonkeyPatch) -> None:
    """What a check or a trim wrote again is another half: the handle that the producer has leads nowhere."""
    carried = apply_module._APPLY[CarriedHalf]

    def forgets(state: Any, record: CarriedHalf) -> None:
        carried(state, record._replace(first_offset=record.offset))

    patch.setitem(apply_module._APPLY, CarriedHalf, forgets)


@plant
def gateway_knows_a_transaction_until_its_first_end(patch: pytest.MonkeyPatch) -> None:
    """The proxy's map: filled by the send, emptied by the first END, gone after a restart or 30 s."""
    sent, end = Sends._sent, Sends.end

    def remembers(self: Any, context: Any, reply: Any) -> None:
        known = self.__dict__.setdefault("known", {})
        known[getattr(reply, "unique_id", "")] = self._pump._loop.time()
        sent(self, context, reply)

    def looks(self: Any, connection: Any, request: Any) -> None:
        sent_at = self.__dict__.setdefault("known", {}).pop(request.ext.msg_id, None)
        if sent_at is None or self._pump._loop.time() - sent_at > 30:
            self._gateway.answer(connection, request, 1, "transaction data not found")
        else:
            end(self, connection, request)

    patch.setattr(Sends, "_sent", remembers)
    patch.setattr(Sends, "end", looks)


# --- crashes ---------------------------------------------------------------------------------------------------


@plant
def answers_leave_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    """What says that the half is settled is in memory when COMMIT is answered, and on the disk some time later."""
    patch.setattr(Store, "durable_position", property(lambda store: store.log.end))


@plant
def restart_drops_prepared_transactions(patch: pytest.MonkeyPatch) -> None:
    recover = broker_module.recover

    def expires(store: Any, settings: Any) -> Any:
        state, redone = recover(store, settings)
        for group in state.producer_groups.values():
            group.undecided.clear()
        return state, redone

    patch.setattr(broker_module, "recover", expires)


@plant
def restart_finds_committed_transactions_undecided(patch: pytest.MonkeyPatch) -> None:
    """COMMIT only forgot in memory; what redo finds on the disk are halves."""
    recover, settle = broker_module.recover, apply_module._settle

    def finds_halves_only(store: Any, settings: Any) -> Any:
        apply_module._settle = _known_but_not_taken_out
        try:
            return recover(store, settings)
        finally:
            apply_module._settle = settle

    patch.setattr(broker_module, "recover", finds_halves_only)


@plant
def commit_is_a_loop_over_the_queues(patch: pytest.MonkeyPatch) -> None:
    """Each message of a transaction is committed by a write of its own, the next one when the one before is safe."""
    ended = Sends._ended
    committed = apply_module._APPLY[Committed]
    commit_one = machine._commit_one

    def one_half(state: Any, known: Any, decided_by: Any, offset: int, segment: int, now_ms: int) -> Decision:
        return commit_one(state, known, known.halves[0], decided_by, offset)

    def shows_one(state: Any, record: Committed) -> None:
        group = state.producer_groups[record.group]
        known = group.undecided.get(record.tx_id)
        committed(state, record)
        rest = (
            ()
            if known is None
            else tuple(half for half in known.halves if half.half_index != record.refs[0].half_index)
        )
        if rest:
            del group.settled[record.tx_id]
            state.verdicts.pop()
            group.undecided[record.tx_id] = known._replace(halves=rest, count=len(rest))

    def goes_on(self: Any, context: Any, reply: Any) -> None:
        connection, request = context
        group = self._pump.state.producer_groups.get(request.ext.producer_group)
        known = group.undecided.get(request.ext.tx_id) if group is not None and isinstance(reply, Settled) else None
        if known is None:
            ended(self, context, reply)
        else:
            half = known.halves[0]
            command = machine.EndTransaction(
                connection.number,
                group.name,
                known.tx_id,
                half.half_index,
                half.first_offset,
                Wanted.COMMIT,
                0,
                "",
                None,
            )
            self._pump.submit(command, self._ended, context)

    patch.setattr(machine, "_commit_many", one_half)
    patch.setitem(apply_module._APPLY, Committed, shows_one)
    patch.setattr(Sends, "_ended", goes_on)
