"""Each bug of ``catalogue.py`` put back into halfmq, as a switch: ``with planted("name"): ...``.

A plant changes what the broker, the client or the database side does, and nothing of a test. It stays until the block
ends; brokers and clients must be started inside it. Where the bug's mechanism does not exist here, the plant does what
users suffered from it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
from msgspec.structs import replace
from sqlalchemy import select

from halfmq import AsyncClient, Outcome
from halfmq.broker import broker as broker_module
from halfmq.broker.peers.peers import Peers
from halfmq.broker.remoting.sends import SendCommands
from halfmq.broker.services.checks import Checks
from halfmq.broker.services.messages import StoredMessages
from halfmq.client import check_listener
from halfmq.client.check_listener import CheckListener
from halfmq.client.prepare import Preparation
from halfmq.client.receipts import COMMITTED, TransactionReceipt
from halfmq.client.user_code import call
from halfmq.core import apply as apply_module
from halfmq.core import decide as decide_module
from halfmq.core import engine as engine_module
from halfmq.core.commands import CopyForward, RequestedVerdict, Tick
from halfmq.core.decision import Decision, Done, Failed, Refused, Settled
from halfmq.core.engine import Engine
from halfmq.core.state import Undecided, default_grace_ms
from halfmq.core.transaction import check_schedule, machine, retention, states
from halfmq.errors import HalfmqError, SendTimeout
from halfmq.model.records import Checked, Committed, CopiedHalf, HalfRecord, checked_size
from halfmq.model.stored_message import decode
from halfmq.sql.alchemy.marker_rows import MarkerRows
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
    conflicts = states.SettledEffect.CONFLICTS
    changed = {
        key: states.SettledEffect.REPEATS if what is conflicts else what for key, what in states.OF_SETTLED.items()
    }
    patch.setattr(machine, "OF_SETTLED", changed)


@plant
def moved_half_is_known_by_its_new_offset(patch: pytest.MonkeyPatch) -> None:
    """What a check or a trim wrote again is another half: the handle that the producer has leads nowhere."""
    carried = apply_module._APPLY[CopiedHalf]

    def forgets(state: Any, record: CopiedHalf) -> None:
        carried(state, replace(record, half=replace(record.half, first_offset=record.offset)))

    patch.setitem(apply_module._APPLY, CopiedHalf, forgets)


@plant
def gateway_knows_a_transaction_until_its_first_end(patch: pytest.MonkeyPatch) -> None:
    """The proxy's map: filled by the send, emptied by the first END, gone after a restart or 30 s."""
    sent, end = SendCommands._sent, SendCommands.end

    def remembers(self: Any, context: Any, reply: Any) -> None:
        known = self.__dict__.setdefault("known", {})
        known[getattr(reply, "unique_id", "")] = self._sequencer._loop.time()
        sent(self, context, reply)

    def looks(self: Any, connection: Any, request: Any) -> None:
        sent_at = self.__dict__.setdefault("known", {}).pop(request.ext.msg_id, None)
        if sent_at is None or self._sequencer._loop.time() - sent_at > 30:
            self._gateway.answer(connection, request, 1, "transaction data not found")
        else:
            end(self, connection, request)

    patch.setattr(SendCommands, "_sent", remembers)
    patch.setattr(SendCommands, "end", looks)


# --- crashes ---------------------------------------------------------------------------------------------------


@plant
def answers_leave_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    """What says that the half is settled is in memory when COMMIT is answered, and on the disk some time later."""
    patch.setattr(Store, "durable_position", property(lambda store: store.log.end))


@plant
def restart_drops_prepared_transactions(patch: pytest.MonkeyPatch) -> None:
    recover = broker_module.recover

    def expires(store: Any, settings: Any) -> Any:
        engine, redone = recover(store, settings)
        for group in engine.state.producer_groups.values():
            group.undecided.clear()
        return engine, redone

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
    ended = SendCommands._ended
    committed = apply_module._APPLY[Committed]
    commit = machine._commit

    def one_half(state: Any, known: Any, decided_by: Any, offset: int, now_ms: int) -> Any:
        return commit(state, replace(known, halves=known.halves[:1], count=1), decided_by, now_ms)

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
            group.undecided[record.tx_id] = replace(known, halves=rest, count=len(rest))

    def goes_on(self: Any, context: Any, reply: Any) -> None:
        connection, request = context
        group = self._sequencer.engine.state.producer_groups.get(request.ext.producer_group)
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
                RequestedVerdict.COMMIT,
                0,
                "",
                None,
            )
            self._sequencer.submit(command, self._ended, context)

    patch.setattr(machine, "_commit_many", one_half)
    patch.setitem(apply_module._APPLY, Committed, shows_one)
    patch.setattr(SendCommands, "_ended", goes_on)


# --- waiting ---------------------------------------------------------------------------------------------------

#: RocketMQ's: checks, and age, after which a half is thrown away.
_CHECKS_MAX: Final = 15
_AGE_MAX_MS: Final = 72 * 3_600_000


def _count_more(patch: pytest.MonkeyPatch, counted: Callable[[Any, Undecided, int], Checked | None]) -> None:
    """With each tick, also count a check of every transaction for which ``counted`` makes a record (its offset is set here)."""
    send_checks = decide_module.send_checks

    def send_and_count(state: Any, offset: int, bytes_max: int, now_ms: int) -> Any:
        checks = send_checks(state, offset, bytes_max, now_ms)
        offset += sum(record.size for record in checks.records)
        known = [one for group in state.producer_groups.values() for one in group.undecided.values()]
        for record in [counted(state, one, now_ms) for one in known]:
            if record is not None:
                checks.records.append(replace(record, offset=offset))
                offset += record.size
        return checks

    patch.setattr(decide_module, "send_checks", send_and_count)


def _one_more(known: Undecided, next_ms: int) -> Checked:
    size = checked_size(known.group, known.tx_id)
    return Checked(0, size, known.group, known.tx_id, known.halves[0].half_index, known.checks + 1, next_ms)


@plant
def immune_transactions_are_counted(patch: pytest.MonkeyPatch) -> None:
    """The count is raised in each round, before the immunity is looked at."""

    def counted(state: Any, known: Undecided, now_ms: int) -> Checked | None:
        return _one_more(known, known.next_check) if known.grace_until_ms > now_ms else None

    _count_more(patch, counted)


@plant
def attempts_that_reach_nobody_are_counted(patch: pytest.MonkeyPatch) -> None:
    """The count is raised, then it turns out that nobody is there."""
    next_check_ms = engine_module.next_check_ms

    def counted(state: Any, known: Undecided, now_ms: int) -> Checked | None:
        alone = not state.producer_groups[known.group].session.members
        due = known.next_check <= now_ms
        return _one_more(known, now_ms + 30_000) if alone and due else None

    def soonest(state: Any) -> int | None:
        known = [one for group in state.producer_groups.values() for one in group.undecided.values()]
        waiting = [one.next_check for one in known]
        asked = next_check_ms(state)
        return min([*waiting, *([] if asked is None else [asked])], default=None)

    _count_more(patch, counted)
    patch.setattr(engine_module, "next_check_ms", soonest)


def _skip(state: Any, given_up: Callable[[Undecided], bool]) -> None:
    for group in state.producer_groups.values():
        for tx_id in [tx_id for tx_id, known in group.undecided.items() if given_up(known)]:
            apply_module._settle(state, group, tx_id)


@plant
def undecided_transactions_expire(patch: pytest.MonkeyPatch) -> None:
    """``needSkip``: older than the log's retention."""
    decide_carry = decide_module.DECIDE[CopyForward]

    def skips_first(state: Any, command: CopyForward, now_ms: int) -> Decision:
        _skip(state, lambda known: known.prepared_at_ms < now_ms - _AGE_MAX_MS)
        return decide_carry(state, command, now_ms)

    patch.setitem(decide_module.DECIDE, CopyForward, skips_first)


@plant
def trim_takes_undecided_halves_along(patch: pytest.MonkeyPatch) -> None:
    """Files go by age, whatever lies in them."""
    patch.setattr(retention, "_candidates", lambda state, log_start: iter(()))


def _immunity_on_the_clients_clock(patch: pytest.MonkeyPatch, believed: Callable[[int], bool]) -> None:
    """The rest counts from the time at which the client says that the message was born, where ``believed(behind_ms)``."""
    half = apply_module._APPLY[HalfRecord]

    def from_birth(state: Any, record: HalfRecord) -> None:
        behind_ms = state.batch_time_ms - record.message.born_time_ms
        if believed(behind_ms):
            rest_ms = record.grace_ms if record.grace_ms >= 0 else default_grace_ms(state)
            record = replace(record, grace_ms=max(0, rest_ms - behind_ms))
        half(state, record)

    patch.setitem(apply_module._APPLY, HalfRecord, from_birth)


@plant
def clients_clock_behind_is_believed(patch: pytest.MonkeyPatch) -> None:
    _immunity_on_the_clients_clock(patch, lambda behind_ms: behind_ms > 0)


@plant
def clients_clock_ahead_is_believed(patch: pytest.MonkeyPatch) -> None:
    _immunity_on_the_clients_clock(patch, lambda behind_ms: behind_ms < 0)


@plant
def half_whose_dead_letter_cannot_be_written_is_skipped(patch: pytest.MonkeyPatch) -> None:
    """After enough checks it should go elsewhere; the write fails, a line is logged, and it is gone."""
    placed = Engine._placed

    def skips(self: Any, command: Any, decision: Any, now_ms: int, pace: Any) -> Any:
        found = placed(self, command, decision, now_ms, pace)
        if found is not None and type(command) is Tick and isinstance(found.reply, Refused):
            _skip(self.state, lambda known: known.checks >= _CHECKS_MAX)
        return found

    patch.setattr(Engine, "_placed", skips)


@plant
def half_that_cannot_be_moved_is_skipped_after_ten_tries(patch: pytest.MonkeyPatch) -> None:
    copied = Engine._copied
    tries = 0

    def gives_up(self: Any, command: Any, decision: Any, now_ms: int) -> Any:
        nonlocal tries
        parts = copied(self, command, decision, now_ms)
        if type(command) is CopyForward and isinstance(parts.reply, Failed):
            tries += 1
            if tries > 10:
                self.state.session.copy_progress = retention.CopyProgress(self.state, command.log_start)
                self.state.session.copy_progress.seen = True
                return parts._replace(reply=Done(again=False))
        return parts

    patch.setattr(Engine, "_copied", gives_up)


# --- checks ----------------------------------------------------------------------------------------------------


@plant
def damaged_half_ends_the_round_of_checks(patch: pytest.MonkeyPatch) -> None:
    """The loop over what is due is left with the exception, and begins anew at the same half."""
    on_effects = broker_module.Broker._on_effects

    def gives_up(self: Any, effects: list[Any]) -> None:
        try:
            on_effects(self, effects)
        except ValueError:
            return

    def unguarded(self: Any, offset: int) -> bytes:
        half = bytes(self._store.stored_view(offset))
        decode(half)
        return half

    patch.setattr(broker_module.Broker, "_on_effects", gives_up)
    patch.setattr(StoredMessages, "half_bytes", unguarded)


@plant
def damaged_half_stops_the_broker(patch: pytest.MonkeyPatch) -> None:
    """Ours, found by this test: nobody caught what decoding raised."""
    patch.setattr(StoredMessages, "half_bytes", lambda self, offset: bytes(self._store.stored_view(offset)))


@plant
def check_for_a_busy_connection_is_dropped(patch: pytest.MonkeyPatch) -> None:
    push = Peers.push

    def drops(self: Any, number: int, what: object) -> bool:
        peer = self.connected.get(number)
        return True if peer is not None and peer.is_full else push(self, number, what)

    patch.setattr(Peers, "push", drops)


@plant
def check_without_an_answer_is_never_repeated(patch: pytest.MonkeyPatch) -> None:
    """Rejected by a full pool, and still in flight for whoever asked."""
    patch.setattr(check_schedule, "expire_in_flight", lambda group, now_ms: None)
    patch.setattr(check_schedule, "is_in_flight", lambda group, tx_id, now_ms: tx_id in group.session.in_flight)


@plant
def any_member_answers_for_the_group(patch: pytest.MonkeyPatch) -> None:
    """One listener a group, and whoever is asked has it."""
    ask = CheckListener._ask

    async def with_what_there_is(self: Any, transaction: Any, half: Any) -> Outcome:
        transaction.name = next(iter(self._listeners), transaction.name)
        return await ask(self, transaction, half)

    patch.setattr(CheckListener, "_ask", with_what_there_is)


@plant
def first_member_is_always_asked(patch: pytest.MonkeyPatch) -> None:
    send = Checks.send

    def to_the_first(self: Any, check: Any) -> None:
        members = self._sequencer.engine.state.producer_groups[check.group].session.members
        send(self, check._replace(connection=next(iter(members), check.connection)))

    patch.setattr(Checks, "send", to_the_first)


# --- clients ---------------------------------------------------------------------------------------------------


@plant
def prepare_that_is_not_answered_in_time_is_rolled_back(patch: pytest.MonkeyPatch) -> None:
    """Whatever is not SEND_OK is ROLLBACK."""

    async def once(self: Any) -> None:
        failure = await self._send_missing()
        if failure is not None:
            raise SendTimeout("FLUSH_DISK_TIMEOUT") from failure

    patch.setattr(Preparation, "send", once)


@plant
def committer_swallows_errors(patch: pytest.MonkeyPatch) -> None:
    commit = AsyncClient.commit

    async def reports_success(self: Any, prepared: Any) -> TransactionReceipt:
        try:
            return await commit(self, prepared)
        except HalfmqError:
            return TransactionReceipt(prepared.tx_id, COMMITTED)

    patch.setattr(AsyncClient, "commit", reports_success)


@plant
def exception_of_a_checker_vanishes(patch: pytest.MonkeyPatch) -> None:
    """In a future that is thrown away."""

    async def unseen(self: Any, transaction: Any, half: Any) -> Outcome:
        try:
            answer = await call(self._run_blocking, self._listeners[transaction.name], transaction)
        except Exception:
            return Outcome.UNKNOWN
        return answer if isinstance(answer, Outcome) else Outcome.UNKNOWN

    patch.setattr(CheckListener, "_ask", unseen)


@plant
def checker_that_returns_nothing_means_rollback(patch: pytest.MonkeyPatch) -> None:
    def taken(value: object, what: str) -> Outcome:
        return value if isinstance(value, Outcome) else Outcome.ROLLBACK

    patch.setattr(check_listener, "checked_outcome", taken)


# --- the database side -----------------------------------------------------------------------------------------


@plant
def old_markers_are_forgotten_whatever_their_state(patch: pytest.MonkeyPatch) -> None:
    """Whoever asks later is told "finished", and that is ROLLBACK."""
    forget = MarkerRows.forget
    patch.setattr(MarkerRows, "forget", lambda self, connection, ids, undecided: forget(self, connection, ids, ()))


@plant
def marker_expires_after_a_day(patch: pytest.MonkeyPatch) -> None:
    """A row whose time is over is not looked at any more."""
    look = MarkerRows.look

    def looks_at_what_is_fresh(self: Any, connection: Any, tx_id: str) -> Any:
        written = connection.scalar(select(self.table.c.written_at_ms).where(self.table.c.tx_id == tx_id))
        fresh = written is not None and written > self._now_ms() - 86_400_000
        seen = look(self, connection, tx_id)
        return seen if fresh else seen._replace(outcome=None)

    patch.setattr(MarkerRows, "look", looks_at_what_is_fresh)
