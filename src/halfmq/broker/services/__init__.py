"""The calls of the broker, without a protocol: front doors (``broker.remoting``, ``broker.http``) translate to and from them.

- A call takes typed values and the ``Peer`` who asks, never a frame, a header field or a response code.
- A call that only reads returns its result. What it says may not be durable yet: a front door holds the answer with
  ``Sequencer.after_durable`` (promise 5).
- A call that changes something, or has to wait, takes ``answer``, which is called once, on the loop, and never if the peer is
  gone or the broker fails. What goes through the sequencer is durable by then, and needs no further holding.
- A refusal is a value: ``core.decision.Refused`` with its ``Why``, or ``core.engine.Failed``. A front door has a table of its
  own from ``Why`` to what its protocol says.
- What the broker says by itself (a check, a wake-up) goes out through a protocol that the front door implements.

Nothing here imports ``halfmq.wire`` or a front door: ``make layers`` looks.
"""
