"""Work on several devices at once: all of it, in order, and none left running when something fails."""

import itertools
import signal
import threading
import time

import pytest

from edgecompress.core.progress import NO_PROGRESS
from edgecompress.errors import DeviceError
from edgecompress.pipeline.at_once import at_once


def run(task, work):
    return at_once(task, work, names=[str(one) for one in work], progress=NO_PROGRESS)


def test_results_come_in_order_whoever_is_first():
    order, turn = [], [threading.Event() for _ in range(4)]
    turn[-1].set()

    def task(number, progress):
        assert turn[number].wait(10)  # the last goes first
        order.append(number)
        if number:
            turn[number - 1].set()
        return 10 * number

    assert run(task, [0, 1, 2, 3]) == [0, 10, 20, 30]
    assert order == [3, 2, 1, 0]


def test_one_piece_of_work_needs_no_thread():
    assert run(lambda one, progress: threading.current_thread(), ["a"]) == [threading.main_thread()]


def endless(progress, steps, going):
    for step in progress.track(itertools.count(), "measuring"):
        steps.append(step)
        going.set()


def eventually_alone(within_s=10.0):
    """Returns whether all threads of the work have ended; one interrupted at its start is not waited for."""
    until_s = time.monotonic() + within_s
    while busy := any("ThreadPool" in thread.name for thread in threading.enumerate()):
        if time.monotonic() > until_s:
            break
        time.sleep(0.01)
    return not busy


def test_when_one_fails_the_others_end_and_its_error_is_shown():
    steps, going = [], threading.Event()

    def task(name, progress):
        if name == "good":
            endless(progress, steps, going)
        assert going.wait(10)
        raise DeviceError("bad: is offline")

    with pytest.raises(DeviceError, match="bad: is offline"):
        run(task, ["good", "bad"])
    assert steps
    assert eventually_alone()


@pytest.fixture
def interruptible():
    """Shells start programs in the background deaf to Ctrl-C; this one listens."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_ends_all(interruptible):
    steps, going = [], threading.Event()

    def task(name, progress):
        if name == "first":
            assert going.wait(10)
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        endless(progress, steps, going)

    with pytest.raises(KeyboardInterrupt):
        run(task, ["first", "second"])
    assert steps
    assert eventually_alone()


class Descriptions:
    def __init__(self):
        self.seen = set()

    def track(self, items, description, total=None):
        self.seen.add((description, total))
        yield from items


def test_progress_says_which_device_is_meant():
    progress = Descriptions()

    def task(name, progress):
        return sum(progress.track([1, 2, 3], "loading", 3))

    assert at_once(task, ["a", "b"], names=["A1", "B2"], progress=progress) == [6, 6]
    assert progress.seen == {("A1: loading", 3), ("B2: loading", 3)}
