"""The relay: publishes the rows of an outbox (``halfmq.sql.Outbox``) to a message broker.

``publisher`` is what a target must do, with one module for each target. Any number of relays may run on one outbox.
"""
