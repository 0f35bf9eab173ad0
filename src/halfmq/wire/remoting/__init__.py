"""RocketMQ's remoting protocol, 4.x and 5.x: bytes to values and values to bytes.

Nothing here reads a clock, opens a socket or keeps state, except the unfinished frame in ``FrameSplitter``.
Whatever a peer sends, a reader here returns a value or raises ``ProtocolError``; the one border in the shells that
owns the connection turns that into a closed connection (or, for ``InvalidHeader``, into an answer with code 1).

    frame.py           bytes of a connection -> frames
    header.py          frame -> Request; answers, pushes and requests -> frame
    fields.py          the typed command headers, one struct for each command
    binary_header.py   the ROCKETMQ serialisation of a header
    codes.py           numbers
    java_json.py       the JSON that fastjson writes and standard readers refuse
    route.py heartbeat.py group_bodies.py    JSON bodies
    message_codec.py   batches, sends, checks, pulled messages; compression.py what their bodies are packed with
    replies.py         answers as a client reads them
"""
