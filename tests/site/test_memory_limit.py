# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A training process gets no more memory than its site allows, and says that it was memory."""

import pytest

from fedpeft.site import training_process
from fedpeft.site.training_process import GIB, Learners

ASK = """
import torch
from fedpeft.site.training_process import limit_memory
from fedpeft.site.connection import Failure
limit_memory(2.0)
small = torch.zeros({small})
try:
    {get}
except Exception as error:
    code = Failure.of(error).code
assert code == "out-of-memory"
"""


@pytest.mark.slow
@pytest.mark.parametrize("get", ["torch.ones({count}, dtype=torch.uint8)", "bytearray({count})"])
def test_more_memory_than_the_site_allows_is_refused(fresh_processes, get):
    assert not fresh_processes.run(ASK.format(small=10**6, get=get.format(count=3 * GIB)))


@pytest.mark.parametrize(("policy", "limits"), [({"memory_gib": 2}, [2]), ({}, []), (None, [])])
def test_a_sites_process_keeps_to_the_limit_of_the_sites_file(monkeypatch, policy, limits):
    taken = []
    monkeypatch.setattr(training_process, "limit_memory", taken.append)
    monkeypatch.setattr(training_process.os, "umask", lambda mask: mask)
    Learners.opened(sections={}, site=None, log=None, policy=policy)
    assert taken == limits


MEASURE = """
import torch
from fedpeft.importance.memory_budget import available_memory
from fedpeft.site.training_process import limit_memory
limit_memory(2.0)
before = available_memory(torch.device("cpu"))
held = torch.ones(500 * 2**20, dtype=torch.uint8)
after = available_memory(torch.device("cpu"))
assert 0 < after < before < 2 * 2**30, (before, after)
assert abs(before - after - 500 * 2**20) < 50 * 2**20, (before, after)
"""


@pytest.mark.slow
def test_layers_are_counted_within_the_limit_of_the_process(fresh_processes):
    assert not fresh_processes.run(MEASURE)
