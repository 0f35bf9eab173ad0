"""Every operation of the broker on its disk, with a crash before it, after it and during it.

    house.py        the real broker on a faulty disk, and clients that remember their requests and the responses
    operations.py   scripts: prepare, commit, trim, start, ...; each begins where its own operations begin
    points.py       runs a script once and forks the disk before and after each operation
    promises.py     what must hold after a restart, whatever was lost, and after the clients retried
    matrix.py       runs all points and losses, counts, and prints the table
    call_sites.py   the places in ``halfmq.store`` that change the disk: the matrix must reach each of them

``python -m tests.crash_matrix`` runs everything; ``--operation NAME`` one script.
"""
