"""The calls of the broker, independent of a protocol. Front doors (``broker.remoting``, ``broker.http``) translate to and from them.

- A call takes typed values, never a frame, a header field or a response code; and the requesting ``Peer``, or only its number where that is
  enough (``Verdicts.end``).
- A call that only reads returns its result. The state in it may not be durable yet: a front door withholds the response with
  ``Sequencer.after_durable`` (promise 5).
- A call that changes something, or has to wait, takes ``answer``, which is called once, on the loop; never if the peer is gone or the
  broker fails. Results of commands are durable by then and need not be withheld. The calls of every send and every verdict (``Sends``,
  ``Verdicts``) take ``deliver`` and ``context`` instead, as ``Sequencer.submit`` does, which saves a closure for each request.
- A refusal is a value: ``core.decision.Refused`` with its ``Why``, or ``Failed`` there. Each front door has its own table from
  ``Why`` to its protocol.
- What the broker sends on its own initiative (a check, a wake-up) goes through a Python protocol that the front door implements.

Nothing here imports ``halfmq.wire`` or a front door; ``make layers`` checks it.
"""
