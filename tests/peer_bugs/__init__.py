"""One test for each published bug of another transactional-message broker; ``catalogue.py`` lists them.

Each runs the real broker, and each is run once more with the bug put back (``plants.py``): then it must fail, and for
the reason that the bug gives.
"""
