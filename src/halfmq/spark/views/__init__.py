"""The transaction table as rows (``view=transactions``, ``view=half``), from files and over the network."""
