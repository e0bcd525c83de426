# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The table of FedProx, SCAFFOLD and their like in methods.md: what it allows composes, what it refuses does not."""

from pathlib import Path

import pytest

from fedpeft.core.errors import FedpeftError
from fedpeft.job.composing import compose

ROOT = Path(__file__).parents[2]
SCHEMES = {
    "FedProx": ("training.proximal_mu=0.01",),
    "SCAFFOLD": ("training.scaffold=true",),
    "MOON": ("training.moon_mu=1",),
    "server optimizers": ("method.server_optimizer=adam",),
    "Ditto": ("training.personalization=ditto",),
    "FedALA": ("training.personalization=fedala",),
}
PIA = ("method.aggregation=pia", "method.pia.share=0.5", "method.pia.accept=false")
CLIENT = (*PIA, "method.pia.server=false")
ALL = {  # those that the table writes out below itself
    "reference": (*PIA, "method.pia.client=false", "method.pia.reference=largest"),
    "normalize": (*PIA, "method.pia.client=false", "method.pia.normalize=false"),
    "svd": ("method.name=lora", "method.aggregation=svd"),
    "stack": ("method.name=lora", "method.aggregation=stack"),
    "own": ("method.aggregation=fedavg", "method.initialization=own"),
    "joins": ("method.aggregation=fedavg", "schedule.joins={slake: 2}"),
}
BESIDE = {
    "`stack`": ALL["stack"],
    "FedDAT": ("method.name=feddat_houlsby", "method.aggregation=fedavg"),
    "AdapterFusion": ("method.name=adapterfusion", "method.aggregation=fedavg"),
}


def table() -> dict[str, list[str]]:
    lines = (ROOT / "docs" / "methods.md").read_text().partition("| with | server PIA |")[2].splitlines()[2:7]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return {name: row[1:] for row in rows for name in ([row[0]] if row[0] in SCHEMES else row[0].split(", "))}


TABLE = table()


def composes(*settings: str, job: str = "fedpia_task1") -> bool:
    try:
        return bool(compose(ROOT / "app_configs", job, settings))
    except FedpeftError:
        return False


@pytest.mark.parametrize("scheme", SCHEMES)
def test_each_scheme_goes_with_pia_and_f3ocus_as_the_table_says(scheme):
    server, client, f3ocus, _ = (cell.startswith("yes") for cell in TABLE[scheme])
    beside = SCHEMES[scheme]
    assert composes(*PIA, "method.pia.client=false", *beside) == server
    assert composes(*CLIENT, "method.pia.integration=weight_space", *beside) == client
    both = client and "refused in two branches" not in TABLE[scheme][1]
    assert composes(*CLIENT, "method.pia.integration=two_branches", *beside) == both
    agreed = client and "refused with shares by agreement" not in TABLE[scheme][1]
    assert composes("method.pia.share=agreement", *beside) == agreed
    assert composes(*beside, job="f3ocus_task1") == f3ocus


@pytest.mark.parametrize("scheme", SCHEMES)
def test_each_scheme_refuses_beside_them_what_the_table_says(scheme):
    said = TABLE[scheme][3]
    refused = {name for name, other in {**ALL, **BESIDE}.items() if not composes(*other, *SCHEMES[scheme])}
    wanted = {name for name in BESIDE if name in said} | (set(ALL) | {"`stack`"} if "*those below*" in said else set())
    assert refused == wanted | ({"stack"} if "`stack`" in said else set())
    others = {name for name in SCHEMES if not composes("method.aggregation=fedavg", *SCHEMES[scheme], *SCHEMES[name])}
    assert others - {"Ditto", "FedALA"} == {name for name in SCHEMES if name in said} - {"Ditto", "FedALA"}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_without_a_global_adapter_there_is_none_of_them(scheme):
    assert not composes("method.aggregation=none", *SCHEMES[scheme])
