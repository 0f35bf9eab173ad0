"""Every operation that the broker makes on its disk, with a crash before it, after it and in the middle of it.

    house.py        the real broker on a faulty disk, and clients that remember what they asked and what they were answered
    operations.py   scripts: prepare, commit, trim, start, ...; each begins where its own operations begin
    points.py       runs a script once and forks the disk before and after each operation
    promises.py     what must hold after a restart, whatever was lost, and after the clients asked again
    matrix.py       goes through points and losses, counts, and prints the table
    call_sites.py   the places in ``halfmq.store`` that change the disk: the matrix must reach each of them

``python -m tests.crash_matrix`` goes through everything; ``--operation NAME`` through one script.
"""
