# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""PIASettings and the package's front door."""

import re
import subprocess
import sys

import pytest
from grids import each

from fedpeft.alignment import PIASettings
from fedpeft.core.errors import FedpeftError
from fedpeft.core.settings import build


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("support", "neurons", "samples, mean, weights"),
        ("aligned_at", "home", "server, site"),
        ("output_axis", "both", "fixed, matched"),
        ("solver", None, "exact, sinkhorn, identity"),
        ("server", None, "True and False"),
        ("normalize", 1, "True and False"),
        ("gamma", -0.1, "at least 0"),
        ("gamma", float("nan"), "at least 0"),
        ("gamma", "0.1", "at least 0"),
        ("gamma", True, "at least 0"),
        ("regularization", 0, "above 0"),
        ("reference", "barycenter", "fedavg, largest, fixed_point"),
        ("passes", 0, "whole number from 1 to 100"),
        ("passes", 101, "whole number from 1 to 100"),
        ("passes", 2.5, "whole number from 1 to 100"),
        ("passes", True, "at least 0"),
        ("margin", 1.0, "below 1"),
        ("margin", float("inf"), "at least 0"),
    ],
)
def test_a_wrong_value_is_refused_by_name(name, value, allowed):
    with pytest.raises(FedpeftError, match=f"{name} is .*{allowed}") as caught:
        PIASettings(**{name: value})
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize("plans", [{"solver": "sinkhorn"}, {"output_axis": "matched"}])
def test_plans_without_one_order_of_hidden_neurons_have_no_fixed_point(plans):
    with pytest.raises(FedpeftError, match="reference='fixed_point' .*: .*" + next(iter(plans))) as caught:
        PIASettings(reference="fixed_point", **plans)
    assert caught.value.setting == "reference"


def test_a_flare_variable_that_became_none_is_refused():
    with pytest.raises(FedpeftError, match="gamma is None"):
        build(PIASettings, {"gamma": None}, section="pia")


def test_a_list_is_a_ramp_and_agreement_concerns_sites_that_integrate():
    assert PIASettings(share=[1, 0.6]).share_in(3, 5) == 0.8
    assert PIASettings(share="agreement", integration="weight_space").follows_agreement
    assert not PIASettings(share="agreement", integration="weight_space", client=False).follows_agreement


@each("share", [(0.1, 1.0), (0.9, 0.0)])
@each("rounds", range(1, 61))
def test_a_ramp_ends_at_its_last_share_and_leaves_0_to_1_in_no_round(share, rounds):
    shares = [PIASettings(share=share).share_in(round, rounds) for round in range(1, rounds + 1)]
    assert shares[0] == share[0]
    assert rounds == 1 or shares[-1] == share[1]
    assert all(0 <= one <= 1 for one in shares)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"share": (0.5,)}, "share is (0.5,), allowed are"),
        ({"share": [1, 0.8, 0.6]}, "share is (1, 0.8, 0.6), allowed are"),
        ({"accept": 1}, "accept is '1', allowed are False, True, places"),
        ({"accept": True, "upload": "local"}, "accept is True, but with integration='two_branches'"),
    ],
)
def test_shares_and_acceptance_that_mean_nothing_are_refused(settings, sentence):
    with pytest.raises(FedpeftError, match=re.escape(sentence)):
        PIASettings(**settings)


def test_every_public_name_resolves_whatever_was_imported_before():
    import fedpeft.alignment
    import fedpeft.alignment.client_pia
    import fedpeft.alignment.integration

    assert all(callable(getattr(fedpeft.alignment, name)) for name in fedpeft.alignment.__all__)
    with pytest.raises(AttributeError, match="barycentre"):
        _ = fedpeft.alignment.barycentre


@pytest.mark.slow
def test_importing_the_package_loads_nothing_heavy():
    code = "import sys, fedpeft.alignment; print([m for m in ('torch', 'scipy', 'ot', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("settings", "label"),
    [
        ({}, "two branches 0.5"),
        ({"integration": "weight_space", "share": [1, 0.6]}, "weight space 1 to 0.6"),
        ({"integration": "weight_space", "share": "validation"}, "weight space by validation"),
        ({"integration": "frozen_half"}, "frozen half 0.5"),
        ({"server": False}, "two branches 0.5, without server PIA"),
        ({"client": False}, "without client PIA"),
    ],
)
def test_every_form_has_a_label(settings, label):
    assert PIASettings(**settings).label == label
