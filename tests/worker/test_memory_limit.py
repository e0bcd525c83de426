# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A training process gets no more memory than its site allows, and says that it was memory."""

import subprocess
import sys

import pytest

from fedpeft.client.memory_limit import GIB

ASK = """
import torch
from fedpeft.client.memory_limit import limit_memory
from fedpeft.worker.failure import Failure
limit_memory(2.0)
small = torch.zeros({small})
try:
    {get}
except Exception as error:
    print(Failure.of(error).code)
"""


@pytest.mark.slow
@pytest.mark.parametrize("get", ["torch.ones({count}, dtype=torch.uint8)", "bytearray({count})"])
def test_more_memory_than_the_site_allows_is_not_had(get):
    code = ASK.format(small=10**6, get=get.format(count=3 * GIB))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "out-of-memory"
