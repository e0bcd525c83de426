# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
import importlib
from concurrent.futures import Future
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch):
    """Function from a benchmark's file name to its module."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module


@pytest.fixture
def in_this_process(benchmark, monkeypatch):
    """learning.py runs what it would give to other processes when it gives it."""
    monkeypatch.setattr(benchmark("learning").parallel, "processes", InThisProcess)


class InThisProcess:
    """A pool that runs each call when it is submitted."""

    def __init__(self, processes):
        del processes

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False

    def submit(self, call, *values):
        future = Future()
        future.set_result(call(*values))
        return future
