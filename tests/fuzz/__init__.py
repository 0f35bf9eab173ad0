"""Bytes from a stranger or a damaged disk, by the million: ``python -m tests.fuzz``.

What each target promises stands in its ``promise``. ``make test`` runs the stored inputs and some fresh ones.
"""
