# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Replies on the server's disk give the bytes that they give in memory, and what the disk refuses costs one site."""

import json
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from harness import Harness, introduction, reply
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_opt.pt.lazy_tensor_dict import LazyTensorDict
from safetensors.torch import save_file

from fedpeft.core.states import digest
from fedpeft.core.stored_state import StoredState
from fedpeft.flare import disk_replies
from fedpeft.flare.messages import to_model
from fedpeft.methods.first_values import normal
from fedpeft.protocol.types import Introduction, TrainReply

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


class Disk(Harness):
    """A server in whose replies the tensors are on its disk, as FLARE's offload leaves them there."""

    disk = True

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.kinds, self.folders = set(), []

    def _answer(self, task, site, order):
        answer = super()._answer(task, site, order)
        if isinstance(answer, Introduction) and not self.hello.initial:
            return replace(answer, state={})
        if not self.disk or not isinstance(answer, TrainReply):
            return answer
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
    monkeypatch.setattr(disk_replies, "offloaded", offloaded)
    monkeypatch.setattr(disk_replies, "MAX_IN_MEMORY", -1)

    def finish(parts, *, stored):
        monkeypatch.setattr(Disk, "disk", stored)
        harness = Disk(**parts, rounds=3)
        harness.run()
        manifest = json.loads((tmp_path / "manifest.json").read_text())
        assert manifest["status"] == "completed", manifest["reason"]
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
