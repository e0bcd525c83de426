# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Streams that have ended leave nothing in memory, and no participant's streams take what the others need."""

import gc
import threading
import weakref
from types import SimpleNamespace

import pytest
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.stats_pool import CounterPool, HistPool
from nvflare.fuel.f3.streaming import stream_utils
from nvflare.fuel.f3.streaming.blob_streamer import BlobStream
from nvflare.fuel.f3.streaming.byte_receiver import RxTask
from nvflare.fuel.f3.streaming.byte_streamer import ByteStreamer, TxTask
from nvflare.fuel.f3.streaming.stream_const import StreamDataType, StreamHeaderKey
from nvflare.fuel.f3.streaming.stream_types import StreamError
from nvflare.fuel.f3.streaming.stream_utils import CheckedExecutor

from fedpeft.flare.hardening import connections, message_limits
from fedpeft.flare.hardening.connections import (
    MAX_CATEGORIES,
    MAX_ENDED,
    MAX_OPEN,
    MAX_OPEN_OF_ONE,
    OTHERS,
    _Removals,
)
from fedpeft.flare.hardening.message_limits import limit_messages

MB = 2**20


@pytest.fixture(autouse=True)
def freed():
    limit_messages()


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
        removals.call_after(-60, lambda: called.append("first"))  # due first, however slow the machine is
    ended.wait()
    assert called == ["first", "later"]
    for thread in threading.enumerate():
        if thread.name == "ended_streams" and thread._target == removals._run:
            thread.join()
    assert not removals._running


@pytest.fixture
def known():
    """FLARE's streams, of which none is there before and after the test."""
    RxTask.rx_task_map.clear()
    connections._open.clear()
    yield RxTask.rx_task_map
    for task in [*RxTask.rx_task_map.values()]:
        task._remove_task()
    connections._open.clear()


def chunk(origin, stream, *, number=0, data=b"x", last=False):
    """A chunk of a stream as it arrives; the stream, or None where it is not read."""
    headers = {
        MessageHeaderKey.ORIGIN: origin,
        StreamHeaderKey.STREAM_ID: stream,
        StreamHeaderKey.SEQUENCE: number,
        StreamHeaderKey.DATA_TYPE: StreamDataType.FINAL if last else StreamDataType.CHUNK,
    }
    message = Message(headers, data)
    task = RxTask.find_or_create_task(message, Cell())
    if task:
        task.process_chunk(message)
    return task


@pytest.mark.slow
@pytest.mark.parametrize(
    ("origins", "taken"),
    [
        (["north"], MAX_OPEN_OF_ONE),
        ([f"north.{number}" for number in range(10)], MAX_OPEN),
        (["relay.north"], MAX_OPEN_OF_ONE),
        (["relay.north", "relay.north.0c5"], MAX_OPEN_OF_ONE),
        ([f"_admin_6a1b3c5d-0000-4000-8000-{number:012}" for number in range(50)], MAX_OPEN),
    ],
    ids=["one process", "a site", "a site behind a relay", "its processes", "consoles"],
)
def test_streams_that_nobody_ends_leave_the_threads_to_the_others(known, origins, taken):
    streams = [chunk(origins[number % len(origins)], number) for number in range(500)]
    assert sum(one is not None for one in streams) == len(known) == taken
    assert chunk("south", 0)
    assert taken == MAX_OPEN or chunk("relay.south", 0)
    assert all(chunk("server.0c5", number) for number in range(300))
    next(one for one in streams if one).stop()
    assert chunk(origins[0], 1000)


def test_a_stream_without_a_first_chunk_is_forgotten_when_a_reader_would_give_up(known):
    for number in range(MAX_OPEN_OF_ONE):
        chunk("north", number, number=5)
    assert chunk("north", 99) is None
    waiting = connections._open["north"]
    for one in waiting:
        one.began -= one.task.timeout + 1
    assert chunk("south", 0)
    assert all(one.has_ended() for one in waiting)
    assert chunk("north", 99)


@pytest.mark.parametrize("early", [False, True], ids=["in order", "early chunks"])
def test_bytes_that_nobody_reads_do_not_fill_the_memory(known, monkeypatch, early):
    monkeypatch.setattr(connections, "MAX_UNREAD", 10 * MB)
    first, second = chunk("north", 0), chunk("north", 1)
    for number in range(1, 6):
        for stream in (0, 1):
            chunk("north", stream, number=number + early, data=bytes(MB))
    assert first.failed or second.failed
    assert not (first.failed and second.failed)
    ended = first if first.failed else second
    assert not ended.chunks
    assert not ended.out_seq_chunks
    with pytest.raises(StreamError, match="streams are not read yet"):
        ended.read(10)


def test_a_site_that_fills_the_memory_of_its_relay_stops_no_other(known, monkeypatch):
    monkeypatch.setattr(connections, "MAX_UNREAD", 10 * MB)
    flood = [chunk("relay.evil.job", stream) for stream in range(3)]
    honest = chunk("relay.north.job", 7)

    def send(stream, numbers):
        for number in numbers:
            chunk("relay.evil.job", stream, number=number, data=bytes(MB))

    send(0, range(1, 7))
    send(1, range(1, 3))
    for number in range(1, 4):
        chunk("relay.north.job", 7, number=number, data=bytes(MB), last=number == 3)
    assert honest.completed
    assert [one.failed for one in flood] == [True, False, False]
    assert len(honest.read(MB)) > 0
    send(1, range(3, 6))
    send(2, range(1, 6))  # the stream that was stopped held most, and is not stopped in place of these
    assert [one.failed for one in flood].count(True) == 2
    assert not honest.failed


def test_a_stream_that_is_read_may_be_of_any_size(known, monkeypatch):
    monkeypatch.setattr(connections, "MAX_UNREAD", 2 * MB)
    task = chunk("north", 0, data=bytes(MB))
    for number in range(1, 20):
        assert len(task.read(MB)) == MB
        chunk("north", 0, number=number, data=bytes(MB), last=number == 19)
    assert task.completed


def test_ended_streams_of_one_sender_are_known_up_to_a_number(known, monkeypatch):
    monkeypatch.setattr(connections, "MAX_ENDED", 5)
    for origin in ("west", "server"):
        for number in range(20):
            task = RxTask(number, origin, Cell(), True)
            known[origin, number] = task
            task.stop()
    assert sum(origin == "west" for origin, _ in known) == 5
    assert sum(origin == "server" for origin, _ in known) == 20
    assert MAX_ENDED > 1000


def test_a_process_that_ends_waits_for_no_chunk(known, monkeypatch):
    pool = CheckedExecutor(2)
    monkeypatch.setattr(message_limits, "callback_thread_pool", pool)
    north, ended = chunk("north", 0), chunk("north", 1, last=True)
    assert north.read(1) == b"x"
    reading = pool.submit(north.read, 1)
    pool.shutdown(wait=True)
    with pytest.raises(StreamError, match="this process ends"):
        reading.result()
    assert ended.completed
    assert not ended.failed


def test_counts_have_few_and_short_names():
    times, counts = HistPool("times", "", [1, 2], "s"), CounterPool("counts", "", ["received"])
    for number in range(MAX_CATEGORIES + 100):
        times.record_value(f"{number}" + "x" * 1000, 1.0)
        counts.increment(f"{number}" + "x" * 1000, "received")
    for known in (times.cat_bins, counts.cat_counters):
        assert len(known) == MAX_CATEGORIES + 1
        assert max(map(len, known)) <= 200
    assert counts.cat_counters[OTHERS]["received"] == 100


def test_a_return_code_that_a_site_writes_is_counted_whatever_it_is():
    """FLARE counts it before it reads a reply, and an error there would fail all sites' replies."""
    counts = CounterPool("counts", "", ["received"])
    for code in ([], {}, None, *(f"{number}" + "x" * 1000 for number in range(MAX_CATEGORIES + 100))):
        counts.increment("cell:REPLY", code)
    assert counts.cat_counters["cell:REPLY"]["[]"] == 1
    assert len(counts.counter_names) == MAX_CATEGORIES + 1
    assert max(map(len, counts.counter_names)) <= 200


def test_no_participant_can_take_all_threads_of_any_pool_of_flare(monkeypatch):
    pools = {one for one in vars(stream_utils).values() if isinstance(one, CheckedExecutor)}
    assert pools == set(connections.POOLS), "FLARE has another pool than before"
    for pool in pools:
        monkeypatch.setattr(pool, "_max_workers", 64)
    connections.limit_streams()
    assert all(pool._max_workers >= 4 * max(message_limits.MAX_FETCHES, connections.MAX_OPEN) for pool in pools)
