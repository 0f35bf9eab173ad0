"""The sentence of an error that came through Spark. Running queries: tests/spark/jobs."""

from halfmq.spark.jobs.stream import first_cause

WRAPPED = """[STREAM_FAILED] Query [id = 1] terminated with exception: [FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred
  File "/somewhere/tables.py", line 91, in write
    raise UsageError(text)
halfmq.errors.UsageError: out was written by another query: use another output

\tat py4j.Protocol.getReturnValue(Protocol.java:476)
Caused by: py4j.Py4JException: An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "/somewhere/tables.py", line 91, in write
    raise UsageError(text)
halfmq.errors.UsageError: out was written by another query: use another output

\t... 34 more
"""


def test_sentence_of_the_python_exception_is_found() -> None:
    assert first_cause(Exception(WRAPPED)) == "out was written by another query: use another output"


def test_other_errors_are_their_first_line() -> None:
    assert first_cause(Exception("[A_CODE] what happened\n\tat org.apache")) == "[A_CODE] what happened"
    assert first_cause(Exception()) == "Exception"
    assert first_cause(Exception('x\n  File "a", line 1, in f\n    g()\nKeyboardInterrupt')) == "KeyboardInterrupt"
