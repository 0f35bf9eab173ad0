"""Is a bug noticed? Two ways to ask.

    python -m tests.mutation     planted bugs: real mistakes, one for each way to break a promise, written by hand in
                                 ``plants.py``; simulation, crash matrix and tests hunt them (``hunters.py``)
    make mutants                 generated mutants: every small change that a tool can think of, in ``core/transaction``
                                 and in recovery; the unit tests hunt them (``generated.py``). Who may survive, and why:
                                 ``survivors.md``

The first asks whether whole promises are watched, the second whether each line is.
"""
