"""The history checker on a broker that we did not write: it finds what is known of it, and nothing of that here."""

from pathlib import Path

import pytest

from halfmq.testing.history.report import DUPLICATE, LOST, REORDERED
from tests.compat.stock_history import VERSION, by_kills, recorded


@pytest.mark.java
@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(400)
def test_committed_messages_of_a_killed_rocketmq_stand_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit writes the message first and notes later that it did: who is killed in between commits again."""
    # On a fast machine the first thousand are all of those that a check settled.
    monkeypatch.setattr("halfmq.testing.history.report.KEPT_OF_A_KIND", 1_000_000)
    # Its notes of what was decided wait up to 3 s: who is killed within these commits again.
    report = recorded("rocketmq", tmp_path, kills=2, seconds=2, seed=1, say=lambda text: None)
    with capsys.disabled():
        print(
            f"\nRocketMQ {VERSION}, two kills: {report.counts[DUPLICATE]:,} messages stand twice, {report.events:,} events"
        )
    found = {kind for kind, count in report.counts.items() if count}
    others = [one.text() for kind in sorted(found - {DUPLICATE}) for one in report.of_kind(kind)[:2]]
    assert DUPLICATE in found
    # On a machine several times slower RocketMQ was once seen to lose and reorder messages too. That these are no inventions
    # of the checker is shown by the next test: the same run on another broker has none.
    assert found <= {DUPLICATE, LOST, REORDERED}, others
    if others:
        with capsys.disabled():
            print("\n".join(others))
    assert by_kills(report) > 0
    assert all(one.message in one.transaction for one in report.of_kind(DUPLICATE))


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_the_same_run_on_halfmq_is_clean(tmp_path: Path) -> None:
    report = recorded("halfmq", tmp_path, kills=3, seconds=1, seed=1, say=lambda text: None)
    assert report.clean, report.violations[0].text()
    assert report.broker_starts == 3
    looked = {one.what: one.looked for one in report.looked}
    assert looked["messages that had to be visible in completely read queues"] > 100
    assert looked["acknowledgements compared with the log"] > 100
    assert looked["transactions prepared before the history settled"] > 100
