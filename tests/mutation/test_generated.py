"""The figures of generated mutants: what counts, and what does not."""

from collections import Counter

from tests.mutation.generated import figures_of, killed_share

RESULTS = """
To show one, run mutmut show
    halfmq.store.log_scan.x\u01c1LogScan\u01c1again__mutmut_1: killed
    halfmq.store.log_scan.x\u01c1LogScan\u01c1again__mutmut_2: survived
    halfmq.store.log_scan.x\u01c1LogScan\u01c1again__mutmut_3: caught by type check
    halfmq.store.recovery.x_settle__mutmut_1: timeout
    halfmq.store.recovery.x_settle__mutmut_2: no tests
    halfmq.store.recovery.x_settle__mutmut_3: not checked
""".splitlines()


def test_a_mutant_that_never_ends_is_caught_and_one_that_no_test_reaches_is_not() -> None:
    figures, left = figures_of(RESULTS, [])
    assert left == [
        ("halfmq.store.log_scan.x\u01c1LogScan\u01c1again__mutmut_2", "survived"),
        ("halfmq.store.recovery.x_settle__mutmut_2", "no tests"),
    ]
    assert killed_share(figures["halfmq.store.log_scan"]) == killed_share(figures["halfmq.store.recovery"]) == 0.5


def test_only_what_was_asked_for_is_counted() -> None:
    figures, _ = figures_of(RESULTS, ["halfmq.store.recovery.*"])
    assert figures == {"halfmq.store.recovery": Counter({"timeout": 1, "no tests": 1, "not checked": 1})}


def test_what_types_forbid_counts_neither_way() -> None:
    assert killed_share(Counter({"killed": 9, "survived": 1, "caught by type check": 90, "not checked": 100})) == 0.9
