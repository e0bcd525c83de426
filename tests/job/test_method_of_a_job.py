# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""One setting, `method.name`, puts every method into every job, or is refused with settings that make it possible."""

import re
from pathlib import Path

import pytest
import torch
from grids import each

from fedpeft import methods
from fedpeft.core.errors import FedpeftError
from fedpeft.core.settings import build
from fedpeft.federate import federate
from fedpeft.job.composing import compose, compose_parts, read_yaml, recipes
from fedpeft.job.settings import CommonSettings
from fedpeft.methods.aggregations import AGGREGATIONS
from fedpeft.methods.settings import MethodSettings
from fedpeft.site.learner import Learner

CONFIGS = Path(__file__).parents[2] / "app_configs"
NAMES = methods.METHODS.own_names()
ALIGNED = {name for name in NAMES if methods.get(name).neurons}
PRODUCTS = {name for name in NAMES if AGGREGATIONS["svd"].fits(methods.get(name))}
DRAWN = {name for name in NAMES if methods.get(name).schedule}  # with layers of their own choice
WHOLE = {name for name in NAMES if not methods.get(name).layers}
FIRST = {  # job -> the aggregation that it prefers, and the methods that admit it
    "fedpia_task1": ("pia", ALIGNED),
    "paper/fedpia_task1": ("pia", ALIGNED),
    "f3ocus_task1": ("fedavg", set(NAMES)),
    "paper/f3ocus_task1": ("fedavg", set(NAMES)),
    "paper/f3ocus_task1_unequal": ("fedavg", set(NAMES)),
    "vit_fed_isic2019": ("svd", PRODUCTS),
    "paper/vit_fed_isic2019": ("svd", PRODUCTS),
}
TABLE = [(job, name) for job in FIRST for name in NAMES]


def refused(job, name):
    return "f3ocus" in job and name in DRAWN | WHOLE


def test_what_methods_declare_decides_where_they_go():
    assert {"houlsby", "pfeiffer", "parallel", "compacter", "lora"} <= ALIGNED
    assert {"lora", "dvpt", "lora_vpt", "lora_dvpt"} <= PRODUCTS
    assert {"sba", "sba_vpt"} <= DRAWN
    assert {"classifier", "promptfl"} <= WHOLE


def settings(job, *overrides):
    return CommonSettings.from_sections(compose(CONFIGS, job, overrides))


@pytest.mark.slow
@each(("job", "name"), [row for row in TABLE if not refused(*row)])
def test_one_setting_puts_a_method_into_a_job(job, name):
    method, _, schedule = settings(job, f"method.name={name}")
    first, able = FIRST[job]
    alone = name == "classifier" and "vit" not in job  # the head of a vision job travels
    assert method.aggregation == (first if name in able else "none" if alone else "fedavg")
    assert method.federates_head == ("vit" in job)
    assert schedule.active == ("f3ocus" in job or name in DRAWN)


@each(("job", "name"), [row for row in TABLE if refused(*row)])
def test_a_refusal_names_settings_that_make_a_job_of_it(job, name):
    with pytest.raises(FedpeftError, match="layer") as caught:
        settings(job, f"method.name={name}")
    remedy = [text.strip('"') for text in re.findall(r'--set ("[^"]+"|[^ ,]+)', str(caught.value))]
    _, _, schedule = settings(job, f"method.name={name}", *remedy)
    assert schedule.active == (name in DRAWN)
    if name in DRAWN:
        assert {schedule.budget_of(site, seed=seed) for site in ("slake", "vqa-rad") for seed in range(9)} == {1}


def test_methods_that_draw_their_layers_are_refused_where_a_site_joins_later():
    with pytest.raises(FedpeftError, match=r"schedule.joins is set, and attention of a drawn layer .* another method"):
        compose(CONFIGS, "cases/late_joiner", ["method.name=sba"])


@each("part", sorted((CONFIGS / "schedules").glob("*.yml")))
def test_a_schedule_brings_no_method(part):
    assert set(read_yaml(part)) == {"schedule"}


@pytest.mark.slow
@each("part", sorted((CONFIGS / "methods").glob("*.yml")))
@each("name", NAMES)
def test_a_methods_part_takes_every_other_method(part, name):
    parts = ["tasks/phantom", "backbones/tiny_vilt", f"methods/{part.stem}", "deployments/laptop"]
    if part.stem in ("local", "local_full") and name in ("sba", "sba_vpt"):  # they draw layers that all sites exchange
        with pytest.raises(FedpeftError, match="they exchange nothing"):
            compose_parts(CONFIGS, parts, [f"method.name={name}"])
    else:
        assert compose_parts(CONFIGS, parts, [f"method.name={name}"])["method"]["name"] == name


def test_every_job_has_one_method():
    for parts in recipes(CONFIGS).values():
        assert sum(part.startswith("methods/") for part in parts) == 1


@pytest.mark.parametrize(
    ("name", "head", "aggregation", "taken"),
    [
        ("lora", "private", ["svd", "fedavg", "none"], "svd"),
        ("houlsby", "private", ["svd", "fedavg", "none"], "fedavg"),
        ("houlsby", "private", ["none", "fedavg"], "none"),
        ("dvpt", "private", ["stack", "svd"], "svd"),
        ("classifier", "private", ["svd", "fedavg", "none"], "none"),
        ("classifier", "federated", ["none", "pia", "svd", "fedavg"], "fedavg"),
        ("full", "federated", ["none", "fedavg"], "fedavg"),
    ],
)
def test_the_first_aggregation_that_the_method_admits_is_taken(name, head, aggregation, taken):
    method = build(MethodSettings, {"name": name, "head": head, "aggregation": aggregation}, section="method")
    assert method == MethodSettings(name=name, head=head, aggregation=taken)


@pytest.mark.parametrize(
    ("name", "aggregation", "sentence"),
    [
        ("full", "pia", "aggregation='pia' aligns neurons, which name='full' does not declare: use"),
        ("classifier", "fedavg", "a head that is private never leaves its site, so name='classifier' needs"),
        ("full", ["pia"], r"aggregation is \['pia'\], and name='full' .* none of these: use 'fedavg' or 'none'\.$"),
        ("lora_vpt", ["pia"], "use 'fedavg' or 'svd' or 'stack' or 'none'"),
        ("classifier", ["pia", "fedavg"], "without a federated head admits none of these: use 'none'"),
        ("houlsby", [], r"aggregation is \[\], .*: use 'pia' or 'fedavg' or 'none'"),
        ("houlsby", ["fedavg", "svt"], "aggregation is 'svt', allowed are pia, fedavg"),
        ("houlsby", [3], r"^method.aggregation is \[3\], it must be a text or a list of texts"),
    ],
)
def test_an_aggregation_that_the_method_does_not_admit_is_refused(name, aggregation, sentence):
    with pytest.raises(FedpeftError, match=sentence) as caught:
        build(MethodSettings, {"name": name, "aggregation": aggregation}, section="method")
    assert caught.value.setting in ("method.aggregation", "method")


SMALL = ["training.rounds=1", "training.local_epochs=1", "method.probe_samples=4", "data.train_size=8"]
SMALL += ["data.validation_size=4", "data.test_size=4", "federation.sites=[slake, vqa-rad]"]
TASKS = {"fedpia_paper": "tiny_vilt", "fedavg": "tiny_vilt", "lora_svd": "tiny_vit"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "name", "label"),
    [
        ("fedpia_paper", "lora", "FedPIA (weight space 0.5), lora adapters"),
        ("fedpia_paper", "bias", "FedAvg, biases"),
        ("fedpia_paper", "classifier", "classifier only"),
        ("fedavg", "classifier", "classifier only"),
        ("lora_svd", "houlsby", "FedAvg, houlsby adapters, federated head"),
        ("lora_svd", "dvpt", "SVD, decomposed visual prompts, federated head"),
        ("lora_svd", "classifier", "FedAvg, classifier only, federated head"),
    ],
)
def test_a_method_runs_in_a_job_of_another(part, name, label, tmp_path):
    parts = ["tasks/phantom", f"backbones/{TASKS[part]}", f"methods/{part}", "deployments/laptop"]
    made = compose_parts(CONFIGS, parts, [f"method.name={name}", *SMALL])
    learners = {site: Learner.from_sections(made, site=site, folder=tmp_path / site) for site in ("slake", "vqa-rad")}
    assert learners["slake"].method.label == label
    (result,) = federate(learners)
    updates = list(result.updates.values())
    if "FedAvg" not in label:
        assert (result.state == {}) == (label == "classifier only")
        return
    total = sum(update.samples for update in updates)
    for key, tensor in result.state.items():
        mean = sum(update.state[key].double() * update.samples for update in updates) / total
        torch.testing.assert_close(tensor.double(), mean, rtol=1e-5, atol=1e-6)
    assert any(key.startswith("head.") for key in result.state) == ("head" in label)
