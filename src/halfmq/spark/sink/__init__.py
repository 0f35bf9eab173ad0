"""Writes of ``format("halfmq")``: ``df.write`` and ``df.writeStream``, exactly once, or with ``guarantee=atLeastOnce`` at least once.

Exactly once, to a halfmq broker:
    tasks    ask for the decision on the batch, and prepare their rows as half batches, which are durable and invisible
    driver   syncs the input of the batch in the checkpoint and sends one decision; the first one stands, so a repeated batch has no effect
At least once, to Apache RocketMQ or halfmq: tasks send their rows as ordinary messages, and the driver does nothing.

writer.py: Spark's interfaces. options.py. columns.py: rows to bodies, properties and queues; waiting.py: these to requests.
Exactly once: task.py, encoder.py (payloads of half batches), broker.py (requests); on the driver decide.py and checkpoint.py. hashes.py.
"""
