# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""After ``import fedpeft`` PEFT knows the methods, in whatever order the two were imported."""

import copy
import pickle
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import EntryPoint

import pytest
from peft import PeftType
from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING, PEFT_TYPE_TO_PREFIX_MAPPING, PEFT_TYPE_TO_TUNER_MAPPING

from fedpeft import adapters, methods
from fedpeft.alignment import neurons
from fedpeft.alignment.neurons import Bottleneck, Neurons
from fedpeft.core.errors import FedpeftError
from fedpeft.methods import METHODS, TuningMethod, peft_types
from fedpeft.methods.adapters import tuning_of
from fedpeft.methods.settings import MethodSettings
from fedpeft.server.aggregation import aggregate

KNOWN = """
from peft.mapping import PEFT_TYPE_TO_TUNER_MAPPING
assert {"HOULSBY", "PFEIFFER", "PARALLEL", "COMPACTER"} <= set(PEFT_TYPE_TO_TUNER_MAPPING)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "imports",
    [
        "import fedpeft; import peft",
        "import peft; import fedpeft",
        "import fedpeft.methods.bottleneck.layer",
        "import fedpeft.methods.slot_tuning, peft",
        "import fedpeft.methods.lora",
        "import fedpeft.methods.slot_tuning",
        "from fedpeft.adapters import HoulsbyConfig; HoulsbyConfig()",
    ],
)
def test_methods_are_known_in_a_fresh_process(fresh_processes, imports):
    assert not fresh_processes.run(f"{imports}\n{KNOWN}")


@pytest.mark.slow
def test_importing_fedpeft_imports_neither_torch_nor_peft():
    code = (
        "import sys, fedpeft, fedpeft.adapters, fedpeft.backbones.slots, fedpeft.core.keys, fedpeft.methods\n"
        "fedpeft.adapters.names(), fedpeft.__version__\n"
        "heavy = {'torch', 'peft', 'transformers', 'numpy', 'nvflare'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unknown_attributes_are_unknown():
    import fedpeft
    from fedpeft import adapters

    for module in (fedpeft, adapters):
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            _ = module.nothing
    assert all(callable(getattr(adapters, name)) for name in adapters.__all__)


@pytest.mark.parametrize("name", [name for name in methods.names() if methods.get(name).peft_tuner])
def test_a_new_peft_type_is_like_pefts_own(name):
    member = PeftType(name.upper())
    assert member is PeftType[name.upper()] is getattr(PeftType, name.upper())
    assert member == name.upper()
    assert member in list(PeftType)
    assert isinstance(member, PeftType)
    assert (member.name, member.value) == (name.upper(), name.upper())
    assert repr(member) == repr(PeftType.LORA).replace("LORA", name.upper())
    assert copy.deepcopy(member) is member
    assert pickle.loads(pickle.dumps(member)) is member
    assert PEFT_TYPE_TO_CONFIG_MAPPING[member].method == name
    assert PEFT_TYPE_TO_TUNER_MAPPING[member].prefix == PEFT_TYPE_TO_PREFIX_MAPPING[member] == f"{name}_"
    assert PEFT_TYPE_TO_TUNER_MAPPING[member].tuner_layer_cls.adapter_layer_names == (f"{name}_adapter",)


@pytest.mark.parametrize("version", ["0.20.0", "0.22.1", "1.0", "0.210.0"])
def test_untested_peft_versions_are_refused(version):
    with pytest.raises(FedpeftError, match=rf"peft {version} is installed, .* 'pip install peft==0\.21\.2'"):
        peft_types.check_version(version)


@pytest.mark.parametrize("version", ["0.21.2", "0.21.0", "0.21.3.dev0"])
def test_versions_of_the_tested_minor_are_not_refused(version):
    peft_types.check_version(version)


def test_names_that_are_taken_or_not_registered_are_refused():
    config, model = (mapping["HOULSBY"] for mapping in (PEFT_TYPE_TO_CONFIG_MAPPING, PEFT_TYPE_TO_TUNER_MAPPING))
    with pytest.raises(FedpeftError, match="PEFT already has a method named 'houlsby'"):
        peft_types.register("houlsby", config, model)
    with pytest.raises(FedpeftError, match="method 'fusion' is not registered"):
        peft_types.register("fusion", config, model)
    with pytest.raises(FedpeftError, match="PEFT already has a method named 'lora'"):
        peft_types.register("lora", config, model)


# An installed plugin that is broken costs its own name: every other method works as before.


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
    neurons._add_kinds_of_plugins.cache_clear()
    yield request.param
    neurons._add_kinds_of_plugins.cache_clear()


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


GATED = Neurons(
    kind="gated",
    needs=frozenset({"down.weight", "gate.weight", "up.weight"}),
    incoming={"down.weight": 0, "gate.weight": 0},
    outgoing={"up.weight": 1},
    outputs={"up.weight": 0},
    dense=lambda tensors: Bottleneck(tensors["down.weight"], None, tensors["up.weight"], None),
)


def test_the_neurons_that_a_method_declares_align_it_also_where_a_built_in_kind_has_some_of_its_tensors(monkeypatch):
    monkeypatch.setattr(neurons, "KINDS", dict(neurons.KINDS))
    method = TuningMethod(home="os:sep", label="gated", source="a test", neurons=f"{__name__}:GATED")
    monkeypatch.setattr("fedpeft.methods.method.imported", lambda home: GATED)
    assert neurons.neurons_of(GATED.needs) is neurons.BOTTLENECK
    assert method.neuron_layout() is method.neuron_layout() is GATED
    assert neurons.neurons_of(GATED.needs) is GATED
    assert neurons.neurons_of({"down.weight", "up.weight"}) is neurons.BOTTLENECK
    monkeypatch.setattr("fedpeft.methods.method.imported", lambda home: replace(GATED))
    with pytest.raises(FedpeftError, match="have the kind 'gated', which others have already: give them another"):
        method.neuron_layout()
