"""Figures of what went through: rates, days, and what each group was given, on a clock of the test's."""

from halfmq.broker.services import traffic as module
from halfmq.broker.services.traffic import SAMPLE_MS, Traffic

DAY_MS = 86_400_000


class Run:
    """A broker that shows and gives messages as time passes."""

    def __init__(self, began_ms: int = 0) -> None:
        self.put = 1_000
        self.now_ms = began_ms
        self.traffic = Traffic(lambda: self.put, began_ms)

    def seconds(self, seconds: int, *, puts: int = 0, gives: int = 0) -> None:
        """So many a second."""
        for second in range(seconds):
            self.now_ms += 1_000
            self.put += puts
            if gives:
                self.traffic.note("G", "T", 1, 0, 0, gives)
            if (second + 1) * 1_000 % SAMPLE_MS == 0:
                self.traffic.sample(self.now_ms)


def test_rates_are_of_their_span_and_what_was_before_the_start_is_not_counted() -> None:
    run = Run()
    assert run.traffic.rates(0, 10) == (0.0, 0.0)
    run.seconds(600, puts=2, gives=4)
    run.seconds(60, puts=20)
    assert run.traffic.rates(run.now_ms, 10) == (20.0, 0.0)
    assert run.traffic.rates(run.now_ms, 60) == (20.0, 0.0)
    put, given = run.traffic.rates(run.now_ms, 600)
    assert (round(put, 1), round(given, 1)) == (3.8, 3.6)
    assert (run.traffic.published, run.traffic.delivered) == (600 * 2 + 60 * 20, 2_400)
    run.seconds(600)
    assert run.traffic.rates(run.now_ms, 600) == (0.0, 0.0)


def test_days_begin_at_midnight() -> None:
    run = Run(DAY_MS - 10_000)
    run.seconds(10, puts=3)
    run.seconds(20, puts=1)
    puts = run.traffic.published_by_day
    assert (puts.yesterday_morning, run.traffic.published) == (0, 50)
    # The look at midnight itself belongs to the new day.
    assert puts.this_morning == 30
    run.now_ms += DAY_MS
    run.traffic.sample(run.now_ms)
    assert (puts.yesterday_morning, puts.this_morning) == (30, 50)
    run.now_ms += 5 * DAY_MS
    run.traffic.sample(run.now_ms)
    assert (puts.yesterday_morning, puts.this_morning) == (50, 50)


def test_what_a_group_was_given_of_a_topic_in_a_minute_an_hour_and_a_day() -> None:
    run = Run()
    run.seconds(7_200, gives=1)
    minute, hour, day = run.traffic.delivered_recently("G", "T")
    assert 50 <= minute <= 60
    assert 3_540 <= hour <= 3_600
    assert day == 7_200
    assert run.traffic.delivered_recently("G", "U") == run.traffic.delivered_recently("H", "T") == (0, 0, 0)
    run.seconds(60)
    assert run.traffic.delivered_recently("G", "T")[0] == 0
    run.seconds(25 * 3_600)
    assert run.traffic.delivered_recently("G", "T") == (0, 0, 0)


def test_a_pull_counts_at_once_and_says_how_far_it_went() -> None:
    run = Run()
    run.traffic.note("G", "T", 7, 2, 33, 5)
    assert run.traffic.delivered_recently("G", "T") == (5, 5, 5)
    assert run.traffic.delivered_to("G", 7, 2) == 33
    assert run.traffic.delivered_to("G", 7, 3) == 0


def test_a_machine_that_slept_for_days_has_given_nothing_lately() -> None:
    run = Run()
    run.seconds(100, gives=1)
    run.now_ms += 3 * DAY_MS
    run.traffic.sample(run.now_ms)
    assert run.traffic.delivered_recently("G", "T") == (0, 0, 0)
    run.seconds(20, gives=1)
    assert run.traffic.delivered_recently("G", "T")[0] == 20


def test_names_that_clients_choose_do_not_fill_the_memory() -> None:
    run = Run()
    for number in range(module.PAIRS_MAX + 10):
        run.traffic.note(f"G{number}", "T", 1, 0, 1, 1)
    assert len(run.traffic._span) == module.PAIRS_MAX
    assert run.traffic.delivered == module.PAIRS_MAX + 10
    for number in range(module.DELIVERED_TO_MAX + 10):
        run.traffic.note("G0", "T", 1, number, 1, 1)
    assert len(run.traffic._delivered_to) <= module.DELIVERED_TO_MAX
