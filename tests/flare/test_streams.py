# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Streams that have ended leave nothing in memory, and one thread waits for all that may resume."""

import gc
import threading
import weakref
from types import SimpleNamespace

import pytest
from nvflare.fuel.f3.streaming.blob_streamer import BlobStream
from nvflare.fuel.f3.streaming.byte_receiver import RxTask
from nvflare.fuel.f3.streaming.byte_streamer import ByteStreamer, TxTask
from nvflare.fuel.f3.streaming.stream_types import StreamError

from fedpeft.flare.hardening.message_limits import _Removals, free_ended_streams

MB = 2**20


@pytest.fixture(autouse=True)
def freed():
    free_ended_streams()


class Cell:
    """A cell that sends nothing anywhere."""

    my_info = SimpleNamespace(fqcn="server")

    def fire_and_forget(self, *arguments, **named):
        return {}


class Blob(bytearray):
    """Bytes that can be watched."""


def sent(blob, **options):
    return TxTask(Cell(), MB, "channel", "topic", "site-1", {}, BlobStream(blob, {}), False, False, False, **options)


@pytest.mark.parametrize("size", [10, MB, 3 * MB + 1])
def test_a_sent_stream_keeps_no_bytes_although_its_future_does_not_end(size):
    blob = Blob(size)
    task, gone = sent(blob), weakref.ref(blob)
    gc.disable()
    try:
        ByteStreamer._transmit_task(task)
        del blob
        assert task.stream_future.result() == size
        assert gone() is None
        assert task.buffer is None
    finally:
        gc.enable()


def test_a_stream_that_failed_keeps_what_its_thread_may_be_sending():
    task = sent(Blob(10))
    task.stop(StreamError("lost"), notify=False)
    assert task.buffer is not None


def test_received_streams_are_removed_without_a_thread_for_each():
    tasks = [RxTask(number, "site-1", Cell(), True) for number in range(50)]
    RxTask.rx_task_map.update({(task.origin, task.sid): task for task in tasks})
    before = threading.active_count()
    for task in tasks[1:]:
        task._schedule_remove_task(3600)
    assert threading.active_count() <= before + 1
    removed = threading.Event()
    remove, tasks[0]._remove_task = tasks[0]._remove_task, lambda: (remove(), removed.set())
    tasks[0]._schedule_remove_task(0)
    removed.wait()
    assert ("site-1", 0) not in RxTask.rx_task_map
    assert ("site-1", 1) in RxTask.rx_task_map
    for task in tasks[1:]:
        task._remove_task()
    assert not any(origin == "site-1" for origin, _ in RxTask.rx_task_map)


def test_functions_are_called_in_the_order_of_their_times_and_the_thread_ends():
    removals, called, ended = _Removals(), [], threading.Event()
    with removals._changed:  # the thread does not look at its list before both are in it
        removals.call_after(0.02, lambda: (called.append("later"), ended.set()))
        removals.call_after(0.0, lambda: called.append("first"))
    ended.wait()
    assert called == ["first", "later"]
    for thread in threading.enumerate():
        if thread.name == "ended_streams" and thread._target == removals._run:
            thread.join()
    assert not removals._running
