# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""An installed plugin that is broken costs its own name: every other method works as before."""

from importlib.metadata import EntryPoint

import pytest

from fedpeft import adapters
from fedpeft.alignment import neurons
from fedpeft.core.errors import FedpeftError
from fedpeft.methods import METHODS, TuningMethod
from fedpeft.methods.adapters import tuning_of
from fedpeft.methods.settings import MethodSettings
from fedpeft.server.aggregation import aggregate

NO_NEURONS = TuningMethod(home="os:sep", label="mine", source="a test", neurons="no_such_module:NEURONS", exports=True)
BROKEN = {"module": "no_such_module:METHOD", "object": "os:no_such_thing", "kind": "os:sep", "neurons": ""}


@pytest.fixture(params=BROKEN)
def broken(request, monkeypatch):
    """The name of a plugin that is broken in one of several ways."""
    point = EntryPoint(name="mine", value=BROKEN[request.param] or f"{__name__}:NO_NEURONS", group=METHODS.group)
    if request.param == "neurons":
        monkeypatch.setattr(EntryPoint, "load", lambda self: NO_NEURONS)
    for kind in (METHODS, neurons._PLUGINS):
        monkeypatch.setattr(kind, "_plugins", {"mine": point})
        monkeypatch.setattr(kind, "_skipped", set())
    neurons._of_plugins.cache_clear()
    yield request.param
    neurons._of_plugins.cache_clear()


def test_every_other_method_is_found(broken):
    assert {"houlsby", "lora"} <= set(adapters.names())
    assert tuning_of(adapters.config("houlsby")).name == "houlsby"
    assert neurons.neurons_of({"A", "B"}) is neurons.LORA


def test_states_of_unknown_kinds_have_no_neurons_and_the_log_says_once_why(broken, caplog):
    for _ in range(2):
        assert neurons.neurons_of({"gain"}) is None
    assert len(caplog.records) == 1
    assert "cannot be" in caplog.text


def test_a_job_that_names_it_is_refused_with_the_reason(broken):
    def run():
        aggregate({}, MethodSettings(name="mine"), previous=None)  # with broken neurons nothing is averaged unaligned

    with pytest.raises(FedpeftError, match=r"cannot be (used|imported).*: (update|correct)") as refused:
        run()
    assert refused.value.code == "plugin-unusable"
