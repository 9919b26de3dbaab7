"""Calls to a server that may go away: in their order, and none behind one that was lost."""

import threading

import pytest

from aligner_lib.remote_critic.serial_executor import SerialExecutor


def test_calls_keep_their_order_and_none_follows_a_lost_one_until_the_caller_has_recovered():
    made: list[int] = []
    executor = SerialExecutor()
    futures = [executor.put(lambda number=number: made.append(number)) for number in range(20)]
    assert [future.result(10) for future in futures] == [None] * 20
    assert made == list(range(20))
    # Else a train step of the step that was lost would reach the server that was started in its place.
    made: list[str] = []
    executor, goes_away = SerialExecutor(), threading.Event()

    def lost():
        assert goes_away.wait(10)
        raise ConnectionError("gone")

    first, second = executor.put(lost), executor.put(lambda: made.append("second"))
    goes_away.set()
    for future in (first, second):
        with pytest.raises(ConnectionError, match="gone"):
            future.result(10)
    executor.recover()
    executor.put(lambda: made.append("third")).result(10)
    assert made == ["third"]
