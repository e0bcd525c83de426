# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Replies on the server's disk give the bytes that they give in memory, and what the disk refuses costs one site."""

import errno
import gc
import json
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from harness import Harness, introduction, reply
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_opt.pt import tensor_downloader
from nvflare.app_opt.pt.decomposers import TensorDecomposer
from nvflare.app_opt.pt.lazy_tensor_dict import LazyTensorDict
from nvflare.fuel.f3.cellnet.defs import ReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FqcnInfo
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.utils.fobs import FOBSContextKey
from safetensors.torch import save, save_file

from fedpeft.core import states
from fedpeft.core.errors import FedpeftError
from fedpeft.core.states import StoredState, digest
from fedpeft.flare import messages
from fedpeft.flare.controller import REPLIES
from fedpeft.flare.hardening import message_limits
from fedpeft.flare.hardening.message_limits import limit_messages
from fedpeft.flare.messages import from_model, to_model
from fedpeft.methods.first_values import normal
from fedpeft.protocol.fields import MB, Limit, Unread
from fedpeft.protocol.types import Introduction, TrainReply

pytestmark = pytest.mark.slow

HOUSES = {
    f"layer.{layer}.output.{name}": shape
    for layer in range(2)
    for name, shape in {"down.weight": [4, 6], "down.bias": [4], "up.weight": [6, 4], "up.bias": [6]}.items()
}
LORA = {
    f"layer.{layer}.query.{name}": shape for layer in range(2) for name, shape in {"A": [2, 6], "B": [6, 2]}.items()
}
SITES = [f"site-{letter}" for letter in "abcdef"]
METHODS = {
    "mean": ({"aggregation": "fedavg"}, HOUSES),
    "one pass": ({"aggregation": "pia"}, HOUSES),
    "fixed point": ({"aggregation": "pia", "pia": {"reference": "fixed_point"}}, HOUSES),
    "svd": ({"name": "lora", "aggregation": "svd"}, LORA),
    "stack": ({"name": "lora", "aggregation": "stack"}, LORA),
    **{
        average: ({"aggregation": "fedavg", "robust": {"average": average}}, HOUSES)
        for average in ("median", "trimmed_mean", "krum", "multi_krum", "geometric_median")
    },
    **{
        optimizer: ({"aggregation": "fedavg", "server_optimizer": optimizer}, HOUSES)
        for optimizer in ("momentum", "adagrad", "adam", "yogi")
    },
    "keeps its own": ({"aggregation": "pia", "pia": {"client": True}}, HOUSES),
}


ROOT = messages._TENSOR_DISK_OFFLOAD_ROOT_DIR


class Disk(Harness):
    """A server in whose replies the tensors are on its disk, as FLARE's offload leaves them there."""

    disk = True

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.kinds, self.folders, self.refusals = set(), [], []
        self.present = []  # replies on the disk, whenever one comes

    def _answer(self, task, site, order):
        answer = super()._answer(task, site, order)
        if isinstance(answer, Introduction) and not self.hello.initial:
            return replace(answer, state={})
        if not self.disk or not isinstance(answer, TrainReply):
            return answer
        self.present.append(len(list(self._replies.iterdir())))
        folder = self._replies / f"{site}-{order.current_round}"
        folder.mkdir()
        self.folders.append(folder)
        places = {}
        for number, (key, tensor) in enumerate(answer.state.items()):
            save_file({f"T{number}": tensor}, folder / f"chunk_{number}")
            places[key] = str(folder / f"chunk_{number}"), f"T{number}"
        lazy = LazyTensorDict(places, str(folder))
        model = to_model(answer)
        model.params = {key: lazy.make_lazy_ref(key) for key in places}
        return FLModelUtils.to_shareable(model)

    def integrate(self, replies):
        self.kinds |= {type(one.state) for one in replies.values()}
        return super().integrate(replies)


def federation(method, schema, *, outlier=""):
    """What the sites of a job answer: noise around the order, of its own in each site and round."""
    start = {
        key: torch.zeros(shape) if key.endswith(("bias", ".B")) else normal(tuple(shape), 0.02, 0, key)
        for key, shape in schema.items()
    }

    def introduce(site):
        return introduction(site, schema=schema, state=start if site == SITES[0] else {})

    def train(site, order):
        noise = torch.Generator().manual_seed(100 * order.round + SITES.index(site))
        size = 50.0 if site == outlier else 0.001
        state = {}
        for key, shape in schema.items():
            before = order.state.get(key)
            known = before is not None and list(before.shape) == shape
            state[key] = (before if known else start[key]) + size * torch.randn(shape, generator=noise)
        return reply("slake", order, state=state)

    return {"introduce": introduce, "train": train, "method": method, "sites": SITES}


@pytest.fixture
def finished(run, tmp_path, monkeypatch):
    """Function: run a job with replies on disk or in memory; its server, and the digest of each round's adapter."""
    monkeypatch.setattr(messages, "offloaded", offloaded)
    monkeypatch.setattr(messages, "MAX_IN_MEMORY", -1)
    monkeypatch.setattr(states, "MAX_SMALL", 0)

    def finish(parts, *, stored, rounds=3):
        monkeypatch.setattr(Disk, "disk", stored)
        harness = Disk(**parts, rounds=rounds)
        harness.run()
        manifest = json.loads((tmp_path / "manifest.json").read_text())
        assert manifest["status"] == "completed", manifest["reason"]
        history = json.loads((tmp_path / "history.json").read_text())
        harness.refusals = [one["rejected"] for one in history["rounds"]]
        return harness, [digest(state) for state in harness.saved]

    return finish


@contextmanager
def offloaded(fl_ctx, folder):
    yield


@pytest.mark.parametrize("name", METHODS)
def test_every_method_gives_the_same_bytes(finished, name):
    method, schema = METHODS[name]
    parts = federation(method, schema)
    server, in_memory = finished(parts, stored=False)
    assert server.kinds == {dict}
    server, on_disk = finished(parts, stored=True)
    assert server.kinds == {StoredState}
    assert on_disk == in_memory
    assert len(set(on_disk)) == 3


def test_the_update_check_refuses_the_same_sites(finished):
    parts = federation(*METHODS["mean"], outlier="site-c") | {"quorum": 5}
    servers = [finished(parts, stored=stored) for stored in (False, True)]
    (one, in_memory), (other, on_disk) = servers
    assert in_memory == on_disk
    assert one.refusals == other.refusals
    assert [set(refused) for refused in one.refusals] == [{"site-c"}] * 3


def test_nothing_is_left_on_the_disk(finished, tmp_path):
    server, _ = finished(federation(*METHODS["mean"]), stored=True)
    assert len(server.folders) == 3 * len(SITES)
    assert server.present == 3 * list(range(len(SITES)))
    assert not list((tmp_path / "state").glob(".*"))


class Cell:
    """A cell that goes on with what it gets, and whose requests are answered with tensors of 0.4 MB."""

    def __init__(self, tensors, folder):
        self.left = self.tensors = tensors
        self.context = {FOBSContextKey.TENSOR_DISK_OFFLOAD: True, ROOT: str(folder)}
        self.core_cell = SimpleNamespace(my_info=FqcnInfo("server.job"))

    def send_request(self, **request):
        if not self.left:
            return make_reply(ReturnCode.OK, body={"status": "eof"})
        self.left -= 1
        data = [save({f"T{self.left}": torch.full((100_000,), float(self.left))})]
        state = {"start": self.left, "count": 1}
        return make_reply(ReturnCode.OK, body={"status": "ok", "data": data, "state": state})

    def register_request_cb(self, **request):
        pass

    fire_and_forget = register_request_cb

    def get_fobs_context(self, props=None):
        return self.context | (props or {})


def received(tensors, folder):
    """A reply with that many tensors, as FLARE puts it together where they go to the disk."""
    decomposer, ref = TensorDecomposer(), json.dumps({"fqcn": "chest.job", "ref_id": "r"})
    manager = SimpleNamespace(fobs_ctx={FOBSContextKey.CELL: Cell(tensors, folder)})
    decomposer.process_datum(SimpleNamespace(value=ref, dot=decomposer.get_download_dot()), manager)
    values = {"round": 1, "samples": 5, "metrics": {}, "scores": [], "seconds": 1.0, "problem": ""}
    model = to_model(TrainReply(**values, state={}))
    model.params = {
        f"key-{number}": decomposer.recompose({"type": "ref", "data": f"T{number}"}, manager)
        for number in range(tensors)
    }
    return model


@pytest.fixture(autouse=True)
def messages_up_to_ten_megabytes(monkeypatch):
    monkeypatch.setattr(message_limits, "_limit", message_limits._limit)
    limit_messages(Limit(10 * MB, "look at the log there."))


def test_a_streamed_reply_is_on_the_disk_until_nobody_holds_it(tmp_path):
    reply = from_model(TrainReply, received(3, tmp_path))
    assert type(reply.state) is StoredState
    assert [float(reply.state[f"key-{number}"].max()) for number in range(3)] == [0, 1, 2]
    assert len(list(tmp_path.rglob("*.safetensors"))) == 3
    del reply
    gc.collect()
    assert not list(tmp_path.iterdir())


def full(*args, **kwargs):
    raise OSError(errno.ENOSPC, "No space left on device", "/secret/place")


@pytest.mark.parametrize(("module", "name"), [(tensor_downloader, "open"), (tempfile, "mkdtemp")])
def test_a_full_disk_is_a_refusal_that_says_so_and_leaves_nothing(tmp_path, monkeypatch, module, name):
    with monkeypatch.context() as patched:
        patched.setattr(module, name, full, raising=False)
        model = received(3, tmp_path)
    with pytest.raises(FedpeftError) as refused:
        from_model(TrainReply, model, sender="site chest")
    said = "site chest sent tensors that the server cannot write to its disk (No space left on device): make room"
    assert said in str(refused.value)
    assert "secret" not in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_a_reply_above_the_limit_is_refused_on_the_way_to_the_disk(tmp_path):
    limit_messages(Limit(MB, "look at the log there."))
    with pytest.raises(FedpeftError, match="site chest sent more than 1 MB, which was not read"):
        from_model(TrainReply, received(9, tmp_path), sender="site chest")
    assert not list(tmp_path.iterdir())


def test_no_late_download_goes_on_where_the_job_has_ended(tmp_path):
    folder, other = tmp_path / "ended", tmp_path / "other"
    consumers = [tensor_downloader.DiskTensorConsumer(str(root / "reply")) for root in (folder, other)]
    for root, consumer in zip((folder, other), consumers, strict=True):
        (root / "reply").mkdir(parents=True)
        consumer.consume("r", {}, [save({"T0": torch.zeros(3)})])
    with messages.downloads_into(folder):
        pass
    assert not list(folder.iterdir())
    with pytest.raises(RuntimeError, match="cleaned up"):
        consumers[0].consume("r", {}, [save({"T1": torch.zeros(3)})])
    consumers[1].consume("r", {}, [save({"T1": torch.zeros(3)})])


def test_a_site_that_the_disk_refuses_loses_the_round_alone(finished, monkeypatch):
    parts, original = federation(*METHODS["mean"]), Disk._answer

    def answer(self, task, site, order):
        reply = original(self, task, site, order)
        if site == "site-b" and getattr(order, "current_round", 0) == 2:
            reply["DXO"]["data"] = {key: Unread("tensors that the disk refuses.") for key in reply["DXO"]["data"]}
        return reply

    monkeypatch.setattr(Disk, "_answer", answer)
    server, digests = finished(parts | {"quorum": 5}, stored=True)
    assert [set(refused) for refused in server.refusals] == [set(), {"site-b"}, set()]
    assert len(digests) == 3


def test_what_a_dead_process_left_is_removed(run, tmp_path):
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / f".{REPLIES}.4194305.draft").mkdir()  # above the largest process id
    (tmp_path / "state" / f".{REPLIES}.4194305.draft" / "chunk_0").touch()
    run(rounds=1)
    assert not list((tmp_path / "state").glob(".*"))


@pytest.mark.parametrize("simulated", [False, True])
def test_the_job_cell_sends_tensors_to_the_disk_for_a_time(tmp_path, simulated):
    told = []
    cell = SimpleNamespace(update_fobs_context=told.append)
    engine = SimpleNamespace(get_cell=lambda: None if simulated else cell)
    if simulated:
        engine.server = SimpleNamespace(job_cell=cell)
    with messages.offloaded(SimpleNamespace(get_engine=lambda: engine), tmp_path):
        (first,) = told
        assert first == {FOBSContextKey.TENSOR_DISK_OFFLOAD: True, ROOT: str(tmp_path)}
    assert told[-1] == {FOBSContextKey.TENSOR_DISK_OFFLOAD: False}


def test_a_job_goes_on_from_a_checkpoint_that_is_read_from_the_disk(finished, tmp_path):
    """The first rounds on disk, the last in memory, and the other way round: always the same bytes."""
    parts = federation(*METHODS["keeps its own"])
    _, whole = finished(parts, stored=False)
    for first in (True, False):
        finished(parts, stored=first)
        newest = max((tmp_path / "state").glob("*/round-00002"), key=lambda folder: folder.stat().st_mtime_ns)
        name = f"{newest.parent.name}/{newest.name}"
        _, rest = finished(parts | {"resume_from": name}, stored=not first)
        assert rest == whole[1:], "the adapter that it goes on from, then its own"
