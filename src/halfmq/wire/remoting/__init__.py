"""Codecs of RocketMQ's remoting protocol, 4.x and 5.x.

Pure functions; the only state is the incomplete frame in ``FrameSplitter``. For any input, a decoder returns a value or raises
``ProtocolError``; the owner of the connection then closes it (after ``InvalidHeader`` it may respond with code 1 instead).

    frame.py           bytes of a connection -> frames
    header.py          frame -> Request; responses, pushes and requests -> frame
    fields.py          headers of commands and responses as typed structs
    binary_header.py   headers in the ROCKETMQ serialisation
    codes.py           request and response codes, languages, versions, flags
    java_json.py       fastjson's extensions of JSON
    route.py heartbeat.py group_bodies.py    JSON bodies of RocketMQ's commands; admin_stats.py   of its commands for statistics
    operators.py producer_groups.py check_polls.py    halfmq's own commands: their fields and bodies
    position.py        the store's position, which halfmq adds to responses
    message_codec.py   batches, sends, checks, pulled messages; compression.py   their bodies
"""
