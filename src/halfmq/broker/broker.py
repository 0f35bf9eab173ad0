"""The composition root: one broker on one directory, made of parts that know as little of each other as possible.

    Store -> redo -> State -> Sequencer -> handlers of commands -> front doors -> two to four ports

The front doors are the Gateway (broker port, name service, and the VIP channel if it is enabled) and the HttpFrontDoor (if
``--http-port`` is given).

Clock, disk, entropy, loop, sync thread and maintenance thread are passed in, so that the same broker runs as a process and in a
simulation.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from halfmq.broker.audit_log import AuditLog
from halfmq.broker.config import BrokerConfig, TlsMode, check_caps, packed_host
from halfmq.broker.first_token import remove_token, write_token
from halfmq.broker.http.resources import Health
from halfmq.broker.listener import Bind, PortPlan, PortTls, bind
from halfmq.broker.log_output import FIELDS
from halfmq.broker.maintenance import Maintenance
from halfmq.broker.metrics.counts import Counts
from halfmq.broker.offload import Offload, ThreadOffload
from halfmq.broker.peers.peer import Peer
from halfmq.broker.peers.peers import Peers
from halfmq.broker.ports import BoundPorts
from halfmq.broker.problems import Problems
from halfmq.broker.recovery import recover
from halfmq.broker.remoting import commands
from halfmq.broker.remoting.checks import CheckPushes
from halfmq.broker.remoting.gateway import Gateway
from halfmq.broker.remoting.handlers import Handlers, Parts
from halfmq.broker.remoting.producer_groups import log_policy_action
from halfmq.broker.runtime_settings import RuntimeSettings
from halfmq.broker.sequencer import Sequencer
from halfmq.broker.services.audit import Audit
from halfmq.broker.services.backups import Backups
from halfmq.broker.services.check_polls import CheckPolls
from halfmq.broker.services.checks import Checks
from halfmq.broker.services.chosen_ids import ChosenIds
from halfmq.broker.services.comparisons import Comparisons
from halfmq.broker.services.group_scan import GroupScan
from halfmq.broker.services.members import Members
from halfmq.broker.services.messages import StoredMessages
from halfmq.broker.services.pulls import Pulls
from halfmq.broker.services.queues import Queues
from halfmq.broker.services.sends import Sends
from halfmq.broker.services.settled_verdict_lookup import SettledVerdictLookup
from halfmq.broker.services.stats import Stats
from halfmq.broker.services.topics import GroupsOnUse, Topics
from halfmq.broker.services.traffic import SAMPLE_MS, Traffic
from halfmq.broker.services.transactions import Transactions
from halfmq.broker.services.users import FIRST, Users
from halfmq.broker.services.verdicts import Verdicts
from halfmq.broker.slow_sync import SlowSync
from halfmq.broker.timers import BrokerTime, DeadlineTimer
from halfmq.broker.turns import Turns
from halfmq.core.clock_jumps import plausible_ms
from halfmq.core.commands import Tick
from halfmq.core.decision import (
    Done,
    Effect,
    Failed,
    NotCompared,
    OffsetNotStored,
    PolicyActed,
    Reply,
    SendCheck,
    SettingChanged,
    WakeQueue,
)
from halfmq.core.engine import Engine
from halfmq.core.session import LogOffsetsNow
from halfmq.core.steps import goes_on
from halfmq.errors import HalfmqError, StorePoisoned, UsageError
from halfmq.model.address import Address
from halfmq.runtime.clock import Clock
from halfmq.runtime.disk import Disk
from halfmq.runtime.entropy import Entropy
from halfmq.runtime.log_throttle import LogThrottle
from halfmq.runtime.sealing import load_key
from halfmq.runtime.tls import tls_context
from halfmq.store.group_flush import Job, Syncer
from halfmq.store.store import Store
from halfmq.wire.remoting.codes import code_name, response_name

if TYPE_CHECKING:
    from halfmq.broker.http.door import HttpFrontDoor

log = logging.getLogger("halfmq.broker")

#: Delay of the next tick after one that failed because there is no space for another segment, ms.
REFUSED_TICK_REST_MS: Final = 1_000


class Ports(NamedTuple):
    """The ports that the broker listens on; None: it does not listen there."""

    broker: int
    names: int
    http: int | None = None


#: One is decided while the one before waits for the disk.
_TICKS_MAX: Final = 2


class Broker:
    """Call ``await start()``; it serves until ``drain()`` or until ``failed`` is done. Call ``close()`` in every case."""

    def __init__(
        self,
        config: BrokerConfig,
        disk: Disk,
        clock: Clock,
        entropy: Entropy,
        loop: asyncio.AbstractEventLoop,
        *,
        make_syncer: Callable[[Job], Syncer] | None = None,
        offload: Offload | None = None,
        bind: Bind = bind,
    ) -> None:
        """``make_syncer`` and ``offload``: run syncs and slow work; by default on threads of their own. ``bind``: binds a port; by
        default of the machine.
        """
        self.config = config
        #: Done, with the reason, if the broker had to stop by itself: the disk failed, or there is a bug.
        self.failed: asyncio.Future[BaseException] = loop.create_future()
        self._disk = disk
        self._clock = clock
        self._entropy = entropy
        self._loop = loop
        self._make_syncer = make_syncer
        self._offload: Offload = offload if offload is not None else ThreadOffload(loop)
        self._ports = BoundPorts(bind, config.hosts)
        self._http: HttpFrontDoor | None = None
        self._store: Store | None = None
        self._peers = Peers(
            loop,
            clock=clock.elapsed_s,
            connections_max=config.connections_max,
            unfinished_bytes_max=config.unfinished_bytes_max,
            outgoing_bytes_max=config.outgoing_bytes_max,
            connections_per_address_max=config.connections_per_address_max,
        )
        #: None: nobody can ask for metrics, so that nothing is counted.
        self._counts = Counts(clock.elapsed_s) if config.http_port is not None else None
        self._gateway = Gateway(self._peers, loop.time, self._counts.requests if self._counts is not None else None)
        self._sequencer: Sequencer
        self._members: Members
        self._stop_sequencer: Callable[[], None] = lambda: None
        self._pulls: Pulls
        self._health: Health
        #: None: everybody may do everything.
        self._users: Users | None = None
        self._audit_log: AuditLog | None = None
        self._checks: Checks
        self._chosen_ids: ChosenIds
        self._check_polls: CheckPolls
        #: By their class.
        self._handlers: dict[type[Handlers], Handlers]
        self._maintenance: Maintenance | None = None
        self._settings: RuntimeSettings
        self._timer: DeadlineTimer
        #: Ticks that are submitted and not answered, and whether another one is wanted.
        self._ticks = 0
        self._tick_wanted = False
        self._not_stored = LogThrottle(loop.time)

    # --- start -----------------------------------------------------------------------------------------------

    async def start(self) -> Ports:
        """Bind, recover, listen, serve. Returns the ports.

        Raises:
            UsageError, PortTaken, EnvironmentFailed, StoreInUse, StoreDamaged, StoreFull, StorePoisoned, WrongVersion, OSError: nothing is
                served; call ``close``.
        """
        began_s = self._clock.elapsed_s()
        ports = await self._bind_all()
        settings = replace(
            self.config.settings,
            store_host=packed_host(self.config.advertised(), ports.broker),
            segment_bytes=self.config.segment_bytes,
        )
        options = {} if self._make_syncer is None else {"make_syncer": self._make_syncer}
        self._store = Store.open(
            self._disk,
            self.config.data,
            entropy=self._entropy,
            segment_bytes=self.config.segment_bytes,
            durability=self.config.durability,
            reserve_bytes=self.config.disk_reserve_bytes,
            **options,
        )
        settings = replace(settings, segment_bytes=self._store.segment_bytes)
        check_caps(settings)
        engine, redone = recover(self._store, settings)
        view = engine.state
        self._settings = RuntimeSettings(
            self.config, view, {"port": ports.broker, "name_port": ports.names, "http_port": ports.http}
        )
        self._compose(engine, self._store, ports)
        self._ports.listen()
        self._sequencer.begin_epoch(
            self._store.epoch, self._clock.wall_ms(),
            plausible_ms=plausible_ms(self._settings.config.retention_ms), trust_clock=self.config.trust_clock,
            unset=self._settings.to_unset,
        )  # fmt: skip
        self._chosen_ids.read_index()
        assert self._maintenance is not None
        self._maintenance.check_reserve()
        self._ports.accept()
        self._peers.start()
        self._maintenance.start()
        log.info(
            "store %s (durability %s): %s; %d batches redone, %d undecided, log %d to %d, %.3f s",
            self.config.data, self.config.durability.value, self._store.recovery.says, redone, view.derived.undecided_count, view.log_start, view.log_end,
            self._clock.elapsed_s() - began_s,
        )  # fmt: skip
        self._ports.log()
        return ports

    async def _bind_all(self) -> Ports:
        """Every port has a plan here, and its number in the configuration."""
        config = self.config
        files = config.tls_files()
        tls = None
        if files is not None:
            context = tls_context(files, is_server=True, clock=self._clock.elapsed_s)
            tls = PortTls(context, is_required=config.tls_mode is TlsMode.REQUIRED)
        plans = [
            PortPlan("broker", self._gateway.admit, config.port, tls=tls),
            PortPlan("name service", self._gateway.admit, config.name_port, tls=tls),
        ]
        if config.http_port is not None:
            # Its library is installed with the server, not with the client.
            from halfmq.broker.http.door import HttpFrontDoor

            self._http = HttpFrontDoor(self._peers, {*config.http_names(), socket.gethostname()})
            plans.append(PortPlan("HTTP service", self._http.admit, config.http_port, closed_last=True, tls=tls))
        await self._ports.bind(plans)
        broker, names = self._ports.number_of("broker"), self._ports.number_of("name service")
        assert broker is not None
        assert names is not None
        vip_port = config.vip_port()
        if vip_port is not None:
            without = "clients with vipChannelEnabled, as Java before 4.5.1 by default, cannot send; --no-vip-channel if none has"
            await self._ports.bind([PortPlan("VIP channel", self._gateway.admit, vip_port, without=without, tls=tls)])
        return Ports(broker, names, self._ports.number_of("HTTP service"))

    def _compose(self, engine: Engine, store: Store, ports: Ports) -> None:
        view = engine.state
        time = BrokerTime(self._clock, view.batch_time_ms)
        self._timer = DeadlineTimer(self._loop, time, self._tick)
        peers, gateway = self._peers, self._gateway
        sequencer = self._sequencer = Sequencer(
            engine,
            store,
            self._loop,
            time,
            self._clock.elapsed_s,
            Problems(self._loop.time, store.segment_bytes),
            on_effects=self._on_effects,
            on_released=peers.released,
            on_deadline=self._timer.arm,
            on_fatal=self._fatal,
        )
        self._stop_sequencer = sequencer.stop
        sequencer.on_turn = peers.intake.turned
        peers.intake.work = sequencer
        store.on_durable = lambda position: self._from_sync_thread(sequencer.durable)
        store.on_failed = lambda error: self._from_sync_thread(lambda: sequencer.sync_failed(error))
        slow_sync = SlowSync(self._clock)
        store.on_sync_began, store.on_sync_ended = slow_sync.began, slow_sync.ended
        store.on_space_low = lambda: self._from_sync_thread(sequencer.space_is_low)
        settings = view.settings
        turns = Turns(self._loop, self._clock.elapsed_s, peers.flush)
        stored = StoredMessages(view, store)
        groups = GroupsOnUse(sequencer)
        self._chosen_ids = ChosenIds(sequencer, store, self._offload, peers.flush)
        self._pulls = Pulls(sequencer, store, self._loop, groups, peers.outgoing, peers.flush)
        self._check_polls = CheckPolls(sequencer, self._loop, peers.flush)
        CheckPushes(gateway, store_host=settings.store_host, broker_name=settings.broker_name)
        self._checks = Checks(sequencer, stored, self._check_polls, peers, time)
        transactions = Transactions(
            sequencer,
            time,
            SettledVerdictLookup(view, store, self._offload),
            GroupScan(view, self._loop),
            operator_of=store.log.operator_of,
            user_of=store.log.user_of,
            properties_at=store.log.properties_at,
            flush=peers.flush,
        )
        comparisons = Comparisons(sequencer, time, transactions, store.log.properties_at)
        self._health = Health(sequencer)
        if self._http is not None:
            from halfmq.broker.http.resources import Resources

            Resources(self._http, sequencer, transactions, comparisons, self._health)
        self._members = Members(
            sequencer, groups, time, peers, on_unsupported=gateway.unsupported_requests.subscription
        )
        traffic = Traffic(lambda: store.queues.entries_written, time.now_ms())
        if self._counts is not None:
            self._begin_metrics(self._counts, store, slow_sync, traffic, comparisons, time)
        self._pulls.on_given = traffic.note
        self._begin_users(sequencer, time)
        backups = Backups(self._loop.time)
        self._handlers = commands.bind(Parts(
            gateway=gateway, sequencer=sequencer, store=store, loop=self._loop, time=time, turns=turns, offload=self._offload,
            chosen_ids=self._chosen_ids, sends=Sends(sequencer, stored, self._chosen_ids, turns),
            verdicts=Verdicts(sequencer, stored), pulls=self._pulls, check_polls=self._check_polls, queues=Queues(sequencer, store),
            stored=stored, topics=Topics(sequencer), members=self._members,
            transactions=transactions, comparisons=comparisons, stats=Stats(sequencer, store, traffic, time), traffic=traffic, backups=backups,
            address=str(Address(self.config.advertised(), ports.broker)), durability=self.config.durability.value,
            settings=self._settings,
        ))  # fmt: skip
        peers.on_gone = self._peer_gone
        peers.on_drained = self._peer_drained
        maintenance = self._maintenance = Maintenance(
            self._settings.config, sequencer, store, self._loop, self._offload, time, slow_sync, self._fatal,
            kept_from=backups.kept_from,
        )  # fmt: skip
        maintenance.every("traffic", SAMPLE_MS, lambda: traffic.sample(time.now_ms()))
        store.log.reserve_bytes = self._settings.config.disk_reserve_bytes

        def reconfigure(config: BrokerConfig) -> None:
            store.log.reserve_bytes = config.disk_reserve_bytes
            maintenance.reconfigure(config)

        self._settings.on_change = reconfigure

    def _begin_metrics(
        self,
        counts: Counts,
        store: Store,
        slow_sync: SlowSync,
        traffic: Traffic,
        comparisons: Comparisons,
        time: BrokerTime,
    ) -> None:
        """Count from now on, and serve ``/metrics``."""
        # Its library is installed with the server, and is loaded by brokers with an HTTP port only.
        from halfmq.broker.http.metrics import MetricsResource
        from halfmq.broker.metrics.scrape import UNKNOWN_CODE, BrokerFigures, Scrape

        assert self._http is not None
        sequencer, syncs = self._sequencer, counts.syncs
        sequencer.on_settled = counts.settled.note
        sequencer.engine.report_settled()
        traffic.delivered_by_pair = {}

        def began() -> None:
            slow_sync.began()
            syncs.began()

        def ended() -> None:
            syncs.ended()
            slow_sync.ended()

        store.on_sync_began, store.on_sync_ended = began, ended
        figures = BrokerFigures(
            store, traffic, comparisons, time, counts, lambda: len(self._peers.connected), self._health.why_not,
            lambda code: "UNKNOWN" if code == UNKNOWN_CODE else code_name(code), response_name, self.config.durability.value,
            lambda: self._settings.config.disk_reserve_bytes,
        )  # fmt: skip
        scrape = Scrape(sequencer, figures, self.config.metrics_names_max)
        MetricsResource(self._http, scrape, sequencer, self._clock.elapsed_s)

    def _begin_users(self, sequencer: Sequencer, time: BrokerTime) -> None:
        """Before the commands are bound, which need the users.

        Raises:
            UsageError, EnvironmentFailed: the store has users, and there is no key, or another one.
        """
        config, users = self.config, sequencer.view.users
        if config.secrets_key_file is None:
            if users:
                raise UsageError(
                    f"the store {config.data} has {len(users)} users, whose secrets need a key",
                    hint="--secrets-key-file with the file that it was started with before",
                )
            return
        key = load_key(config.secrets_key_file, may_create=not users, entropy=self._entropy)
        self._users = Users(
            sequencer, self._peers, key, self._entropy, time, self._offload,
            forget_token=lambda: remove_token(config.data),
            clock=self._loop.time,
        )  # fmt: skip
        if self._users.token:
            path = write_token(config.data, self._users.token)
            log.warning(
                "there are no users yet, and nobody is served: make an administrator with `halfmq user add NAME --administrator "
                "--url 'rocketmq://%s@HOST:PORT?secretfile=%s'` (once, on this machine)", FIRST, path,
            )  # fmt: skip
        audit = config.audit_file()
        if audit is not None:
            self._audit_log = AuditLog(audit, config.audit_log_bytes, config.audit_log_files)
            self._gateway.audit = Audit(self._audit_log)
        self._gateway.users = self._users
        if self._http is not None:
            self._http.users = self._users
            self._http.audit = self._gateway.audit

    def _from_sync_thread(self, call: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            log.debug("the loop is closed; a late sync result is ignored")

    # --- while it serves -------------------------------------------------------------------------------------

    def _tick(self) -> None:
        """Submit a tick, or note that one is wanted if there are enough: while much is due the timer fires after each turn, and each tick
        says that there is more, so that without a limit ever more of them would be ahead of every request.
        """
        self._tick_wanted = self._ticks >= _TICKS_MAX
        if not self._tick_wanted:
            self._ticks += 1
            self._sequencer.submit(Tick(), self._ticked)

    def _ticked(self, context: None, reply: Reply | Failed) -> None:
        self._ticks -= 1
        if not isinstance(reply, Done):
            self._timer.rest(REFUSED_TICK_REST_MS)
        elif goes_on(Tick, reply) or self._tick_wanted:
            self._tick()

    def _on_effects(self, effects: list[Effect]) -> None:
        if self._pulls.has_held:
            # Many commits of one turn wake the same queue: once is enough.
            for effect in dict.fromkeys(effects):
                if type(effect) is WakeQueue:
                    self._pulls.wake(effect)
        for effect in effects:
            if type(effect) is WakeQueue:  # the most frequent effect
                continue
            if type(effect) is SendCheck:
                self._checks.send(effect)
            elif type(effect) is PolicyActed:
                log_policy_action(effect)
            elif type(effect) is NotCompared:
                log.warning(
                    "the verdict on transaction %s of group %s will not be compared with its marker: there is no space to remember "
                    "it; see `halfmq tx damaged`", effect.tx_id, effect.group,
                    extra={FIELDS: {"group": effect.group, "tx_id": effect.tx_id}},
                )  # fmt: skip
            elif type(effect) is SettingChanged:
                self._settings.changed(effect.name)
            elif type(effect) is OffsetNotStored and self._not_stored.is_due("offset"):
                log.warning(
                    "base record full: the offset of group %s in queue %d of topic %s was not stored, and others may not be "
                    "either. Topics, groups, their limits and offsets fill the base record at the head of a segment. After a "
                    "restart such a group begins at the beginning; delete topics to free space",
                    effect.group, effect.queue_id, effect.topic,
                    extra={FIELDS: {"group": effect.group, "topic": effect.topic, "queue": effect.queue_id}},
                )  # fmt: skip
        self._check_polls.answer_served()

    def _peer_drained(self, peer: Peer) -> None:
        self._pulls.drained(peer)
        self._checks.drained(peer)

    def _peer_gone(self, number: int) -> None:
        self._pulls.peer_gone(number)
        self._checks.peer_gone(number)
        self._check_polls.peer_gone(number)
        # While draining, the broker closes connections: their clients are alive and continue to consume locked queues.
        self._members.connection_closed(number, keep_locks=self._peers.draining)
        if self._users is not None:
            self._users.gone(number)
        if self._gateway.audit is not None:
            self._gateway.audit.gone(number)
        for handlers in self._handlers.values():
            handlers.peer_gone(number)
        self._peers.flush()

    def _fatal(self, error: BaseException) -> None:
        """No reply may leave any more: close every connection of every front door, so that clients see an unknown outcome, and stop.

        The HTTP port still accepts connections until ``close``, since ``/health`` tells probes the reason (decision 0039); whatever depends
        on the log is withheld for ever by the sequencer.
        """
        if self.failed.done():
            return
        if not isinstance(error, HalfmqError):
            error = StorePoisoned(f"the broker had to stop: {type(error).__name__}: {error}", hint="restart to recover")
        log.critical("stopping: %s", error)
        self._ports.begin_drain()
        self._peers.close(abort=True)
        self.failed.set_result(error)

    def clock_moved(self) -> None:
        """Call it on the loop, after ``start``, when the clock that was passed in has jumped, as a test's can: what is due by it is done
        now. Time limits of connections and requests keep to the loop's own time, in which their peers live."""
        self._timer.clock_moved()

    # --- end -------------------------------------------------------------------------------------------------

    async def drain(self) -> None:
        """Accept no more connections, ask clients that can to reconnect elsewhere, finish accepted requests, write a checkpoint, stop."""
        self._peers.draining = True
        self._health.draining = True
        self._ports.begin_drain()
        self._pulls.drain()
        self._check_polls.drain()
        assert self._maintenance is not None
        self._maintenance.drain()
        await self._sleep(self.config.drain_ms / 1000)
        await self._settle()
        self._sequencer.engine.note(LogOffsetsNow())
        self._tick()
        settled = await self._settle()
        self._ports.close()
        self._peers.close(abort=False)
        self._maintenance.stop()
        if not settled:
            text = "%d replies are withheld and no checkpoint is written: the disk is full; clients retry"
            log.warning(text, self._sequencer.backlog)
            return
        written = self._loop.create_future()
        self._maintenance.checkpoint(lambda: written.set_result(None))
        await asyncio.wait((written, self.failed), return_when=asyncio.FIRST_COMPLETED)

    async def _settle(self) -> bool:
        """Wait until the sequencer has nothing to decide, write or release. False: a full disk delays replies."""
        while not self._sequencer.idle and self._sequencer.failed is None:
            if self._sequencer.waits_for_space and not self._sequencer.catch_up():
                return False
            await self._sleep(0.005)
        return True

    async def _sleep(self, seconds: float) -> None:
        passed = self._loop.create_future()
        self._loop.call_later(seconds, passed.set_result, None)
        await passed

    def close(self) -> None:
        """Close ports, stop threads, release the store's lock. Everything written stays."""
        self._ports.close()
        if self._maintenance is not None:
            self._maintenance.stop()
            self._timer.stop()
        self._peers.close(abort=True)
        self._offload.close()
        if self._audit_log is not None:
            self._audit_log.close()
        if self._store is not None:
            self._stop_sequencer()
            self._store.close()
            self._store = None
