# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""How many sites share a GPU in the simulator; the GPU is faked."""

import pytest
import torch

from fedpeft.core.errors import FedpeftError
from fedpeft.doctor import memory, open_context
from fedpeft.doctor.footprint import Footprint
from fedpeft.run import simulate
from fedpeft.site import computing

GB = 10**9
ONE = Footprint(process=GB, weights=GB, step=2 * GB, state=GB, device="cuda:0", method="measured with a batch of 16")


@pytest.fixture
def gpu(monkeypatch):
    """Function: let a GPU have so many bytes free beside those that the measurement holds."""

    def have(free, held=GB):
        monkeypatch.setattr(computing, "device_of", lambda training: torch.device("cuda:0"))
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free - held, 80 * GB))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: held)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "H200")

    return have


@pytest.mark.parametrize(("free", "threads", "count"), [(80, 5, 5), (17.6, 5, 5), (17.4, 5, 4), (4, 2, 1), (3.4, 2, 0)])
def test_as_many_sites_run_at_once_as_fit(make_job, gpu, free, threads, count):
    gpu(round(free * GB))
    context = open_context(make_job())
    vars(context)["footprint"] = ONE
    found, sentence = memory.fitting(context, threads)
    assert found == count
    assert "memory of H200 with 80 GB: a site needs about 3.5 GB (measured with a batch of 16)" in sentence


def test_on_the_cpu_nothing_is_measured_and_all_run(make_job):
    context = open_context(make_job("training.device=cpu"))
    assert memory.fitting(context, 2) == (2, "")
    assert "footprint" not in vars(context)


def test_simulate_runs_fewer_sites_and_says_why_or_refuses(make_job, monkeypatch, capsys, tmp_path):
    job = make_job()
    monkeypatch.setattr(memory, "sites_at_once", lambda job, threads, workspace: (1, "memory of H200: too little."))
    assert simulate._sites_that_fit(job, tmp_path, 2) == 1
    assert capsys.readouterr().out == "at once  1 of 2 sites; memory of H200: too little.\n"
    monkeypatch.undo()
    monkeypatch.setattr(memory, "_driver", lambda: True)
    monkeypatch.setattr(memory, "ProcessPoolExecutor", Here)
    monkeypatch.setattr(memory, "_measured", lambda job, threads, workspace: (0, "a batch of 16 does not fit."))
    with pytest.raises(FedpeftError, match="a batch of 16 does not fit"):
        memory.sites_at_once(job, 2, workspace=tmp_path)


class Here:
    """Runs in this process what would run in another one."""

    def __init__(self, *_, **__):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def submit(self, function, *arguments):
        self.result = lambda: function(*arguments)
        return self
