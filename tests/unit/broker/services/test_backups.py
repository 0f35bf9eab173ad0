"""What a backup in progress keeps of the log, and when it does not any more."""

from halfmq.broker.services.backups import BACKUPS_MAX, IDLE_S, READS_MAX, Backups, Lease
from halfmq.core.decision import Refused, Why


class Time:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def why(reply: Lease | Refused | None) -> Why | None:
    return reply.why if isinstance(reply, Refused) else None


def test_a_backup_keeps_the_log_from_its_last_read_on() -> None:
    backups = Backups(Time())
    assert backups.kept_from() is None
    assert backups.begin(1, 100, 1_000) is None
    assert backups.begin(2, 300, 1_000) is None
    assert backups.kept_from() == 100
    assert isinstance(backups.read(1, 500), Lease)
    assert backups.kept_from() == 300
    backups.end(2)
    assert backups.kept_from() == 500
    backups.end(1)
    backups.end(1)
    assert backups.kept_from() is None


def test_a_backup_that_reads_nothing_keeps_nothing() -> None:
    time = Time()
    backups = Backups(time)
    backups.begin(1, 100, 1_000)
    time.now_s += IDLE_S
    lease = backups.read(1, 100)
    assert isinstance(lease, Lease)
    time.now_s += 10 * IDLE_S  # the read takes that long, and keeps it
    assert backups.kept_from() == 100
    backups.done(lease)
    time.now_s += IDLE_S
    assert backups.kept_from() == 100
    time.now_s += 1
    assert backups.kept_from() is None
    assert why(backups.read(1, 100)) is Why.NOT_NOW


def test_only_what_was_promised_is_read() -> None:
    backups = Backups(Time())
    assert why(backups.read(1, 100)) is Why.NOT_NOW
    backups.begin(1, 100, 1_000)
    assert [why(backups.read(1, offset)) for offset in (99, 1_000)] == [Why.INVALID_PARAMETER] * 2
    assert isinstance(backups.read(1, 999), Lease)
    assert why(backups.read(1, 998)) is Why.INVALID_PARAMETER  # it is not kept any more


def test_backups_and_their_reads_are_bounded() -> None:
    backups = Backups(Time())
    assert [backups.begin(number, 0, 1_000) for number in range(BACKUPS_MAX)] == [None] * BACKUPS_MAX
    assert why(backups.begin(99, 0, 1_000)) is Why.NOT_NOW
    assert backups.begin(0, 0, 1_000) is None  # in place of its own
    leases = [backups.read(0, 0) for _ in range(READS_MAX)]
    assert why(backups.read(0, 0)) is Why.NOT_NOW
    assert isinstance(leases[0], Lease)
    backups.done(leases[0])
    assert isinstance(backups.read(0, 0), Lease)
