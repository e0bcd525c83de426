# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A message larger than the limit is refused as FLARE's own objects receive it, by the size that it announces."""

import contextlib
import json
import os
import queue
import threading
from types import SimpleNamespace

import pytest
import torch
from filtered_site import Site, score_order, score_reply, train_order, train_reply
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.signal import Signal
from nvflare.app_common.decomposers.numpy_decomposers import NumpyArrayDecomposer
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_opt.pt.decomposers import TensorDecomposer
from nvflare.fuel.f3.cellnet.cell import Adapter
from nvflare.fuel.f3.cellnet.defs import CellChannel, Encoding, MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FqcnInfo
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.f3.streaming.blob_streamer import BlobStream, BlobTask
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey
from nvflare.fuel.f3.streaming.stream_types import BlobSizeError, StreamFuture
from nvflare.fuel.utils.fobs import FOBSContextKey
from safetensors.torch import save

from fedpeft.core.errors import FedpeftError
from fedpeft.flare.executor import SiteExecutor
from fedpeft.flare.hardening import message_limits
from fedpeft.flare.hardening.message_limits import MAX_DISK_FETCHES, limit_messages, take_refusal
from fedpeft.flare.messages import FIELDS, from_model, to_model
from fedpeft.protocol.fields import MB, Limit
from fedpeft.protocol.types import SCORE, TOO_LARGE, TRAIN, ScoreOrder, TrainOrder, TrainReply
from fedpeft.server.handshake import SLACK, limit_of_replies

REMEDY = "look at the log there."


@pytest.fixture(autouse=True)
def a_limit_of_one_megabyte(monkeypatch):
    monkeypatch.setattr(message_limits, "_limit", message_limits._limit)
    limit_messages(Limit(MB, REMEDY))


class Source:
    """A cell whose requests are answered by a sender with that many tensors of 0.4 MB."""

    def __init__(self, tensors):
        self.left = self.tensors = tensors
        self.core_cell = SimpleNamespace(my_info=FqcnInfo("server.job"))

    def send_request(self, **request):
        if not self.left:
            return make_reply(ReturnCode.OK, body={"status": "eof"})
        self.left -= 1
        data = [save({f"T{self.left}": torch.zeros(100_000)})]
        return make_reply(ReturnCode.OK, body={"status": "ok", "data": data, "state": {"start": 0, "count": 1}})

    def register_request_cb(self, **request):
        pass

    fire_and_forget = register_request_cb

    def get_fobs_context(self, props=None):
        return dict(props or {})


def fetched(source, name="T0", cell="chest.job"):
    """A tensor of a message, as FLARE puts it together."""
    decomposer, ref = TensorDecomposer(), json.dumps({"fqcn": cell, "ref_id": "r"})
    manager = SimpleNamespace(fobs_ctx={FOBSContextKey.CELL: source})
    decomposer.process_datum(SimpleNamespace(value=ref, dot=decomposer.get_download_dot()), manager)
    return decomposer.recompose({"type": "ref", "data": name}, manager)


def reply_with(value):
    values = {"round": 1, "samples": 5, "metrics": {}, "scores": [], "seconds": 1.0, "problem": ""}
    model = to_model(TrainReply(**values, state={}))
    model.params = {"key": value}
    return model


def test_a_message_within_the_limit_arrives():
    assert torch.equal(fetched(Source(2)), torch.zeros(100_000))


class Crumbs(Source):
    """A cell at whose other end a sender cuts its message into many tensors of one number."""

    def send_request(self, **request):
        reply = super().send_request(**request)
        if "data" in reply.payload:
            reply.payload["data"] = [save({f"T{self.left}-{n}": torch.zeros(1)}) for n in range(100)]
        return reply


def test_tensors_that_are_too_many_are_left_at_their_sender():
    source = Crumbs(100)
    with pytest.raises(FedpeftError, match="site chest sent more than 1 MB, which was not read"):
        from_model(TrainReply, reply_with(fetched(source)), sender="site chest")
    assert source.tensors - source.left <= 5


def test_tensors_that_are_too_large_together_are_left_at_their_sender_and_refused_by_name():
    source = Source(100)
    value = fetched(source)
    assert source.tensors - source.left <= 5
    with pytest.raises(FedpeftError, match="site chest sent more than 1 MB, which was not read: look at the log"):
        from_model(TrainReply, reply_with(value), sender="site chest")


def decoded(sender, running=(), source="chest.job"):
    """What a process makes of a message of this sender whose tensor lies at a source, while others are fetched."""
    for name in running:
        message_limits._fetches.setdefault(name, []).append(Signal())
    before = message_limits._sender.set(sender)
    try:
        return fetched(Source(2), cell=source)
    finally:
        message_limits._sender.reset(before)
        message_limits._fetches.clear()


@pytest.mark.parametrize("sender", ["chest.job", "chest", "server", None])
def test_tensors_are_fetched_from_the_sender_of_their_message(sender):
    assert torch.equal(decoded(sender), torch.zeros(100_000))


@pytest.mark.parametrize(
    ("sender", "running", "reason"),
    [
        ("north.job", (), "tensors of another participant."),
        ("chest.job", ["chest.job"] * 4, "tensors while those of 4 messages of its sender are fetched"),
        ("chest.job", [f"chest.{number}" for number in range(256)], "tensors while those of 256 messages"),
    ],
)
def test_no_participant_has_all_threads_fetch_its_tensors_or_those_of_others(sender, running, reason):
    with pytest.raises(FedpeftError, match=f"site chest sent {reason}"):
        from_model(TrainReply, reply_with(decoded(sender, running)), sender="site chest")


@pytest.mark.parametrize(
    ("sender", "source", "fits"),
    [
        ("relay.evil.job", "relay.north.job", False),
        ("relay.evil.job", "relay.north.x", False),
        ("relay.evil.job", "relay.a1.x", False),
        ("relay.evil.job", "relay.evil.job", True),
        ("relay.evil.job", "relay.evil", True),
    ],
)
def test_a_site_behind_a_relay_has_only_its_own_tensors_fetched(sender, source, fits):
    answer = decoded(sender, source=source)
    if fits:
        assert torch.equal(answer, torch.zeros(100_000))
    else:
        with pytest.raises(FedpeftError, match=r"site chest sent tensors of another participant\."):
            from_model(TrainReply, reply_with(answer), sender="site chest")


@pytest.mark.parametrize("running", [["chest.job"] * 3, [f"north.{number}" for number in range(300)]])
def test_a_few_messages_and_those_of_others_are_no_hindrance(running):
    assert torch.equal(decoded("chest.job", running), torch.zeros(100_000))


@pytest.mark.parametrize("order", [train_order, score_order])
def test_an_order_that_is_too_large_is_left_at_the_server(context, tmp_path, order):
    server, site = Source(100), context()
    (tmp_path / "local" / "fedpeft.json").write_text(json.dumps({"max_message_mb": 2}))
    executor = SiteExecutor(backbone={}, method={}, training={"rounds": 2}, data={}, schedule={})
    executor._opened(site)
    executor._supervisor.close()
    message = order(state={"key": fetched(server)})
    assert server.tensors - server.left <= 7
    task = {TrainOrder: TRAIN, ScoreOrder: SCORE}[type(message)]
    site.set_prop(FLContextKey.TASK_NAME, task, private=True, sticky=False)
    answer = executor.execute(task, FLModelUtils.to_shareable(to_model(message, round=1)), site, Signal())
    assert FLModelUtils.from_shareable(answer).meta[FIELDS]["problem"] == TOO_LARGE
    filtered = Site(tmp_path / "filtered")
    filtered.hello()
    reply = {TRAIN: train_reply, SCORE: score_reply}[task]
    assert filtered.message(task, message, reply()).problem == TOO_LARGE


@pytest.mark.parametrize("disk", [True, False])
def test_tensors_that_go_to_the_disk_are_fetched_for_a_few_messages_at_a_time(disk):
    entered, may_end, running, largest = queue.Queue(), threading.Event(), set(), []

    def fetch(decomposer, context, ref):
        running.add(ref["ref_id"])
        largest.append(len(running))
        entered.put(ref)
        may_end.wait()
        running.discard(ref["ref_id"])

    class Cell:
        def get_fobs_context(self):
            return {FOBSContextKey.TENSOR_DISK_OFFLOAD: disk}

    def one(number):
        context, ref = {FOBSContextKey.CELL: Cell()}, {"fqcn": f"site-{number}.job", "ref_id": number}
        message_limits._fetch_within_limit(fetch, None, context, ref)

    messages, at_once = 7, MAX_DISK_FETCHES if disk else 7
    threads = [threading.Thread(target=one, args=(number,)) for number in range(messages)]
    for thread in threads:
        thread.start()
    for _ in range(at_once):
        entered.get()
    may_end.set()
    for thread in threads:
        thread.join()
    assert (max(largest), entered.qsize()) == (at_once, messages - at_once)


def test_arrays_are_counted_too():
    assert NumpyArrayDecomposer._download_from_remote_cell is TensorDecomposer._download_from_remote_cell


@pytest.mark.parametrize("own", [0, 4 * 2**30])
def test_a_stream_is_refused_by_the_size_that_it_announces(own):
    stream = BlobStream(bytes(2 * MB), {MessageHeaderKey.ORIGIN: "chest.job"})
    with pytest.raises(BlobSizeError):
        BlobTask(StreamFuture(1), stream, own)
    assert "more than 1 MB" in take_refusal("chest")
    assert not take_refusal("chest")


class Flood(Source):
    """A cell at whose other end the sender answers every request with a stream that is too large."""

    def send_request(self, **request):
        self.left -= 1
        headers = {MessageHeaderKey.ORIGIN: "chest.job", StreamHeaderKey.CHANNEL: CellChannel.RETURN_ONLY}
        with pytest.raises(BlobSizeError):
            BlobTask(StreamFuture(1), BlobStream(bytes(2 * MB), headers))
        return make_reply(ReturnCode.TIMEOUT)


def test_a_refused_tensor_is_not_requested_again_and_not_taken_for_the_message_that_names_it():
    flood = Flood(9)
    context = {FOBSContextKey.CELL: flood}
    items = TensorDecomposer()._download_from_remote_cell(context, {"fqcn": "chest.job", "ref_id": "one"})
    assert len(items) == 0
    assert flood.left == 8
    assert not take_refusal("chest")
    assert message_limits._fetches == {}
    assert context[FOBSContextKey.ABORT_SIGNAL] is None


def refuse(origin):
    with pytest.raises(BlobSizeError):
        BlobTask(StreamFuture(1), BlobStream(bytes(2 * MB), {MessageHeaderKey.ORIGIN: origin}))


def test_a_site_is_blamed_for_its_own_messages_alone():
    for origin in ("south.north", "south.north.job", "relay.south.job"):
        refuse(origin)
    assert not take_refusal("north")
    assert not take_refusal("relay.north")
    assert all(take_refusal(cell) for cell in ("south", "south", "relay.south"))
    refuse("relay.north.job")
    assert take_refusal("relay.north")


def test_invented_names_take_no_room_of_another_connection():
    for number in range(message_limits.MAX_NOTED + 20):
        refuse(f"south.{number}")
    refuse("north.job")
    assert take_refusal("north")
    while take_refusal("south"):
        pass


@pytest.mark.parametrize("origins", [["chest." + "a" * 2000], [f"chest.{number}" for number in range(200)], [7, None]])
def test_what_is_noted_of_refused_streams_is_bounded(origins):
    before = set(message_limits._refused)
    for origin in origins:
        with pytest.raises(BlobSizeError):
            BlobTask(StreamFuture(1), BlobStream(bytes(2 * MB), {MessageHeaderKey.ORIGIN: origin}))
    noted = set(message_limits._refused) - before
    for name in noted:
        del message_limits._refused[name]
    assert len(noted) <= 100
    assert all(len(name) <= 1000 for name in noted)


def test_a_stream_within_the_limit_is_taken():
    assert BlobTask(StreamFuture(1), BlobStream(bytes(MB // 2), {}), 0).size == MB // 2


def test_a_reply_that_cannot_be_read_does_not_end_the_server_s_process(monkeypatch):
    ended = []
    monkeypatch.setattr(os, "_exit", ended.append)
    headers = {
        StreamHeaderKey.CHANNEL: CellChannel.SERVER_COMMAND,
        StreamHeaderKey.TOPIC: "submit_update",
        StreamHeaderKey.PAYLOAD_ENCODING: Encoding.FOBS,
    }
    cell = SimpleNamespace(
        decode_pass_through_channels=(), decode_pass_through_topics=(), get_fobs_context=lambda props: dict(props)
    )
    future = SimpleNamespace(headers=headers, result=lambda: b"no message")
    with contextlib.suppress(Exception):  # FLARE logs it, and tells the sender that its message failed
        Adapter(None, FqcnInfo("server.job"), cell).call(future)
    assert not ended


@pytest.mark.parametrize(
    ("shape", "masked", "size"),
    [
        ([50, 50], False, 11_000 + SLACK),
        ([50, 50], True, 22_000 + SLACK),
        ([1], False, 4096 + 409 + SLACK),
        ([2**31, 8], False, 50 * MB),
    ],
)
def test_what_was_announced_bounds_a_reply(shape, masked, size):
    sites = [SimpleNamespace(schema={"key": shape}, dtype="float32"), SimpleNamespace(schema={}, dtype="bfloat16")]
    assert limit_of_replies(sites, max_mb=50, masked=masked).size == size
