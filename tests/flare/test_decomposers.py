# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What FLARE imports first in a simulated site's process."""

import os
import subprocess
import sys

import pytest
from nvflare.apis.fl_constant import ConfigVarName
from nvflare.fuel.utils.config_service import ConfigService

from fedpeft.flare.messages import DECOMPOSERS, SETTING, register_early

START = f"""
import threading
from nvflare.private.fed.utils.fed_utils import register_ext_decomposers
from nvflare.fuel.utils.fobs.fobs import _decomposers
register_ext_decomposers("{DECOMPOSERS}")
for thread in threading.enumerate():
    if thread.daemon:
        thread.join()
print([name for name in _decomposers if "Tensor" in name])
"""


def test_the_variable_is_the_one_that_flare_reads(monkeypatch):
    monkeypatch.setattr(ConfigService, "_var_values", {})
    monkeypatch.setenv(SETTING, "")
    monkeypatch.delenv(SETTING)
    register_early()
    assert ConfigService.get_str_var(ConfigVarName.DECOMPOSER_MODULE) == DECOMPOSERS


def test_a_users_own_decomposers_stay(monkeypatch):
    monkeypatch.setenv(SETTING, "hospital_decomposers")
    register_early()
    assert os.environ[SETTING] == "hospital_decomposers"


@pytest.mark.slow
def test_tensor_messages_are_registered_when_flare_imports_the_package():
    ended = subprocess.run([sys.executable, "-W", "ignore", "-c", START], capture_output=True, text=True, check=True)
    assert "torch" in ended.stdout
