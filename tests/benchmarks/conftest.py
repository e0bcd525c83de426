# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
import importlib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch):
    """Function from a benchmark's file name to its module."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module
