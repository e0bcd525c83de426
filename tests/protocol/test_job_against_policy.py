# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What a job may ask of a site, and whose values hold: the site's, whatever the job says."""

import json
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import fields as fields_of
from dataclasses import replace
from types import SimpleNamespace
from typing import get_args, get_origin, get_type_hints

import pytest
from PIL import Image

from fedpeft.alignment.settings import PIASettings, RobustSettings
from fedpeft.answering.training_settings import TrainingSettings
from fedpeft.backbones import BackboneSettings, default_source
from fedpeft.core.errors import FedpeftError, UnreadableImage
from fedpeft.core.settings import MAX_BY, MIN_BY
from fedpeft.data import DataError, DataSettings
from fedpeft.data.answer_space import UNLISTED
from fedpeft.data.readable import skip_images
from fedpeft.job.settings import SiteJob
from fedpeft.job.site_policy import SitePolicy
from fedpeft.methods.settings import MethodSettings
from fedpeft.protocol import job_against_policy
from fedpeft.protocol.job_against_policy import admitted, effective_size, load_data, refusals
from fedpeft.scheduling.settings import ScheduleSettings
from fedpeft.site.connection import Failure
from fedpeft.site.learner import Learner

SECTIONS = {
    "backbone": {"name": "tiny-vilt"},
    "method": {},
    "training": {"rounds": 5},
    "data": {"dataset": "manifest"},
    "schedule": {},
}
MEMBERS = ("north", "south", "west")
SUMMED = {"aggregation": "fedavg", "secure_sum": True}
AGREED = {"aligned_at": "site", "share": "agreement", "integration": "weight_space"}
SUMS = {"sum_with": MEMBERS}
PRODUCTS = {"aggregation": "svd", "secure_sum": False}  # sites of several ranks
HEAD = {"name": "classifier", "head": "federated"}
SCHEDULED = {"solver": "exact", "budget": 1}


def job(**changes):
    sections = {name: {**values, **changes.get(name, {})} for name, values in SECTIONS.items()}
    return SiteJob.from_sections(sections, site="north")


def adapter(kind, **settings):
    return {"name": kind, "settings": {kind: settings}, "aggregation": "fedavg"}


REFUSED_JOBS = {
    "nih_cxr14": ["data.partition", "data.seed"],  # one data set for all sites: for the simulator
    "f3ocus_task4": ["data.partition"],
    "f3ocus_task5": ["data.partition"],
    "fedpia_task3": ["data.partition"],
    "fedpia_task4": ["data.partition"],
    "vit_fed_isic2019": ["method.head"],  # a site has to allow it: `head: true`
    **{job: ["data.partition", "method.head"] for job in ("vit_caltech101", "vit_flowers102", "vit_ham10000")},
}


def test_every_shipped_job_is_allowed_by_default(request):
    for folder in (request.config.rootpath / "jobs").rglob("config_fed_client.json"):
        if "paper" in folder.parts:  # they cut no validation set: a site writes validation_fraction 0
            continue
        sections = json.loads(folder.read_text())["executors"][0]["executor"]["args"]
        for site in ("slake", "vqa-rad", "head", "north"):
            found = [name for name, _ in refusals(SitePolicy(), SiteJob.from_sections(sections, site=site))]
            assert found == REFUSED_JOBS.get(folder.parents[2].name, [])


MMBT = {"name": "mmbt", "source": "/srv/bert", "image_source": "/srv/resnet"}
MMBT_TRAINED, SOURCES = {**MMBT, "projection": "trained"}, ("/srv/bert", "/srv/resnet")
REFUSED = [
    ("SCAFFOLD", {"training": {"scaffold": True}, "method": {"aggregation": "fedavg"}}, {}, "training.scaffold"),
    ("an excluded image", {"data": {"exclude": ["synpic1"]}}, {}, "data.exclude"),
    ("the excluded images of the site", {"data": {"exclude": ["a"]}}, {"exclude": ("a",)}, "data.exclude"),
    ("a window", {"data": {"window": {"center": 1, "width": 2}}}, {}, "data.window"),
    ("a folder", {"data": {"root": "/etc"}}, {}, "data.root"),
    ("a user's folder", {"data": {"root": "~root"}}, {}, "data.root"),
    ("the folder of nobody", {"data": {"root": "~no-such-user"}}, {}, "data.root"),
    ("the folder of the site", {"data": {"root": "/srv"}}, {"roots": {"manifest": "/srv"}}, "data.root"),
    (
        "other columns of its tables",
        {"data": {"dataset": "hugging_face", "columns": {"answer": "patient_name"}}},
        {"columns": {"answer": "finding"}},
        "data.columns",
    ),
    ("another site's data", {"data": {"site": "../south"}}, {}, "data.site"),
    ("another seed of the cuts", {"data": {"seed": 1}}, {}, "data.seed"),
    ("another validation set", {"data": {"validation_fraction": 0.9, "test_fraction": 0.05}}, {}, "data.validation"),
    ("another test set", {"data": {"test_fraction": 0.01}}, {}, "data.test_fraction"),
    ("a cut that is not allowed", {"data": {"split": "image_disjoint"}}, {"splits": ("published",)}, "data.split"),
    ("a backbone's folder", {"backbone": {"source": "/home/lead/backbone"}}, {}, "backbone.source"),
    ("a hub name", {"backbone": {"source": "evil/model"}}, {}, "backbone.source"),
    ("an image encoder", {"backbone": MMBT}, {"sources": (MMBT["source"],)}, "backbone.image_source"),
    ("a backbone", {"backbone": {"name": "vilt"}}, {"backbones": ("tiny-vilt",)}, "backbone.name"),
    (
        "a folder for this site alone",
        {"backbone": {"sites": {"north": {"source": "/home/lead/backbone"}}}},
        {},
        "backbone.source",
    ),
    (
        "a backbone for this site alone",
        {"backbone": {"sites": {"north": {"name": "vilt"}}}},
        {"backbones": ("tiny-vilt",)},
        "backbone.name",
    ),
    (
        "large images for this site alone",
        {"backbone": {"sites": {"north": {"image_size": 10**6}}}},
        {},
        "backbone.image_size",
    ),
    ("large images", {"backbone": {"image_size": 10**6}}, {}, "backbone.image_size"),
    ("long questions", {"backbone": {"text_length": 10**6}}, {}, "backbone.text_length"),
    ("many rounds", {"training": {"rounds": 9_999}}, {}, "training.rounds"),
    ("many epochs", {"training": {"local_epochs": 21}}, {}, "training.local_epochs"),
    ("many first epochs", {"training": {"first_epochs": 21}}, {}, "training.first_epochs"),
    ("many epochs to catch up", {"schedule": {"joins": {"north": 21}}}, {}, "schedule.joins"),
    ("one sample a step", {"training": {"batch_size": 1}}, {}, "training.batch_size"),
    ("a large batch", {"training": {"batch_size": 10**6}}, {}, "training.batch_size"),
    ("large batches of evaluation", {"training": {"evaluation_batch_size": 10**6}}, {}, "training.evaluation_batch"),
    ("a rate that forgets", {"training": {"learning_rate": 1.0}}, {}, "training.learning_rate"),
    ("the same of the head", {"training": {"head_learning_rate": 1.0}}, {}, "training.head_learning_rate"),
    ("a decay that forgets", {"training": {"weight_decay": 1.0}}, {}, "training.weight_decay"),
    ("a pull that forgets", {"training": {"proximal_mu": 2.0}}, {}, "training.proximal_mu"),
    ("threads", {"training": {"threads": 1000}}, {}, "training.threads"),
    ("processes", {"training": {"workers": 1000}}, {}, "training.workers"),
    ("memory for features", {"training": {"features_mib": 10**6}}, {}, "training.features_mib"),
    ("memory for images", {"training": {"images_mib": 10**6}}, {}, "training.images_mib"),
    ("the site's compiler", {"training": {"compile": True}}, {}, "training.compile"),
    ("another GPU", {"training": {"device": "cuda:3"}}, {}, "training.device"),
    ("a GPU where none is given", {"training": {"device": "cuda"}}, {"device": "cpu"}, "training.device"),
    ("one sample to score on", {"schedule": {**SCHEDULED, "score_samples": 1}}, {}, "schedule.score_samples"),
    (
        "samples to score on with too small a power of two",
        {"schedule": {**SCHEDULED, "score_samples": 20}},
        {"min_score_samples": 20},
        "schedule.score_samples",
    ),
    ("many samples to score on", {"schedule": {**SCHEDULED, "score_samples": 9999}}, {}, "schedule.score_samples"),
    ("scores", {"schedule": SCHEDULED}, {"scores": False}, "schedule.solver"),
    ("one probe", {"method": {"probe_samples": 1}}, {}, "method.probe_samples"),
    ("an adapter in plain view", {}, {"sum_with": MEMBERS}, "method.secure_sum"),
    ("a sum of unknown sites", {"method": SUMMED}, {}, "method.secure_sum"),
    ("scores beside a sum", {"method": SUMMED, "schedule": SCHEDULED}, {"sum_with": MEMBERS}, "schedule.solver"),
    (
        "scores instead of a sum",
        {"method": {"aggregation": "none"}, "schedule": SCHEDULED},
        {"sum_with": MEMBERS},
        "schedule.solver",
    ),
    *(
        (f"{setting} in a sum", {**values, "method": {**SUMMED, **values.get("method", {})}}, SUMS, setting)
        for setting, values in {
            "backbone.sites": {"backbone": {"sites": {"south": {"text_length": 3}}}},
            "data.sites": {"data": {"sites": {"south": {"dataset": "phantom"}}}},
            "data.pool": {"data": {"pool": ["south"]}},
            "method.site_settings": {"method": {"name": "lora", "site_settings": {"south": {"r": 2}}, **PRODUCTS}},
            "schedule.joins": {"schedule": {"joins": {"south": 2}}},
            "schedule.site_budgets": {"schedule": {"site_budgets": {"south": 2}}},
            "method.pia": {"method": {"aggregation": "pia", "pia": AGREED}},
        }.items()
    ),
    ("many probes", {"method": {"probe_samples": 10**6}}, {}, "method.probe_samples"),
    ("many drawn samples", {"data": {"dataset": "phantom", "train_size": 10**9}}, {}, "data.train_size"),
    ("many to validate on", {"data": {"dataset": "phantom", "validation_size": 10**9}}, {}, "data.validation_size"),
    ("many to test on", {"data": {"dataset": "phantom", "test_size": 10**9}}, {}, "data.test_size"),
    ("drawn data", {"data": {"dataset": "phantom"}}, {"datasets": ("manifest",)}, "data.dataset"),
    (
        "data that the lead knows for the others of a sum",
        {"method": SUMMED, "data": {"sites": {"south": {"dataset": "phantom"}, "west": {"dataset": "phantom"}}}},
        {"sum_with": MEMBERS},
        "data.sites",
    ),
    (
        "a score of a plugin",
        {"schedule": {"solver": "own", "score": "snip"}},
        {"score_methods": ("lntk",)},
        "schedule.score",
    ),
    (
        "a long prompt",
        {"backbone": {"name": "llava", "prompt": "{image}{question}" + 380 * "x"}},
        {"max_text_length": 400},
        "backbone.prompt",
    ),
    (
        "a prompt whose characters are several tokens",
        {"backbone": {"name": "llava", "prompt": "{image}{question}" + 100 * "語"}},
        {"max_text_length": 300},
        "backbone.prompt",
    ),
    (
        "a way of answering that is not listed",
        {"training": {"answering": "generation"}, "backbone": {"name": "llava"}},
        {"answering": ("classification",)},
        "training.answering",
    ),
    ("a solver that is not listed", {"schedule": {"solver": "nsga2"}}, {"solvers": ("exact",)}, "schedule.solver"),
    ("choices that show in uploads", {"method": {"pia": {"accept": True}}}, {"metrics": False}, "method.pia"),
    (
        "choices by losses in a sum",
        {"method": {**SUMMED, "aggregation": "pia", "pia": {"aligned_at": "site", "accept": True}}},
        SUMS,
        "method.pia",
    ),
    ("a share chosen by few", {"method": {"pia": {"share": "validation"}}}, {"metrics": False}, "method.pia"),
    (
        "a part of the site's data",
        {"data": {"dataset": "nih_cxr14", "partition": "iid", "parts": 9}},
        {},
        "data.partition",
    ),
    ("as many samples as the job says", {"data": {"dataset": "nih_cxr14", "samples": 900}}, {}, "data.samples"),
    ("a share of the training split", {"data": {"dataset": "nih_cxr14", "train_share": 0.5}}, {}, "data.train_share"),
    (
        "as many samples as the job says, in a sum",
        {"method": SUMMED, "data": {"samples": 900}},
        {"sum_with": MEMBERS},
        "data.samples",
    ),
    (
        "fewer samples of one site in a sum",
        {"method": SUMMED, "data": {"sites": {"south": {"samples": 9}}}},
        {"sum_with": MEMBERS},
        "data.sites",
    ),
    ("data of others", {"data": {"pool": ["south"]}}, {}, "data.pool"),
    ("the head", {"method": {"head": "federated"}, "data": {"dataset": "phantom"}}, {}, "method.head"),
    ("a connector", {"backbone": MMBT_TRAINED}, {"sources": SOURCES}, "backbone.projection"),
    (
        "answers that the site does not list",
        {"method": HEAD, "data": {"answers": ["a"]}},
        {"head": True},
        "data.answers",
    ),
    (
        "more answers than the site lists",
        {"method": HEAD, "data": {"answers": ["a", "tuberculosis"]}},
        {"head": True, "answers": {"manifest": ["a"]}},
        "data.answers",
    ),
    (
        "fewer answers than the site lists",
        {"method": HEAD, "data": {"answers": ["a"]}},
        {"head": True, "answers": {"manifest": ["a", "b"]}},
        "data.answers",
    ),
    (
        "answers that the site lists for other data",
        {"method": HEAD, "data": {"answers": ["a"]}},
        {"head": True, "answers": {"vqa_rad": ["a"]}},
        "data.answers",
    ),
    ("more decoded images than the site keeps", {}, {"max_kept_mib": 1}, "training.images_mib"),
    ("any model", {"backbone": {"name": "transformers", "source": "/srv/clip"}}, {}, "backbone.source"),
    ("the whole backbone", {"method": {"name": "full", "aggregation": "fedavg"}}, {}, "method.name"),
    *(
        (f"{kind} with {settings}", {"method": adapter(kind, **settings)}, {}, "method.settings")
        for kind, settings in (
            ("houlsby", {"layer_widths": {"0": 10**9}}),
            ("houlsby", {"layer_widths": {"9" * 5000: 8}}),
            ("houlsby", {"layers": list(range(10**4))}),
            ("houlsby", {"reduction_factor": 1e-9}),
            ("houlsby", {"target_modules": {f"role{number}": "layer.{layer}" for number in range(10**4)}}),
            ("pfeiffer", {"target_modules": "(a+)+$"}),
            ("parallel", {"scaling": 1024}),
            ("compacter", {"rule_std": 64}),
            ("compacter", {"blocks": 768}),
            ("compacter", {"rank": 10**9}),
            ("lora", {"r": 10**9}),
            ("lora", {"r": 1, "lora_alpha": 4096}),
            ("lora", {"r": True}),
            ("lora", {"target_modules": "(a+)+$"}),
            ("lora", {"exclude_modules": "(a+)+$"}),
            ("lora", {"rank_pattern": {"(a+)+$": 8}}),
            ("lora", {"bias": "all"}),
            ("lora", {"use_dora": True}),
            ("lora", {"init_lora_weights": "pissa"}),
            ("lora", {"r": 1, "lora_alpha": 65}),
            ("lora", {"layers_to_transform": -1}),
            ("pfeiffer", {"layer_norm": "last"}),
            ("fourierft", {"n_frequency": 10**9}),
            ("fourierft", {"scaling": 0}),
            ("fourierft", {"scaling": 10**6}),
            ("fourierft", {"init_weights": False}),
            ("fourierft", {"n_frequency_pattern": {"(a+)+$": 8}}),
            ("miss", {"r": 10**9}),
            ("miss", {"init_weights": "bat"}),
            ("miss", {"mini_r": 0}),
            ("miss", {"bias": "all"}),
        )
    ),
    (
        "a width for this site alone",
        {"method": {"site_settings": {"north": {"layer_widths": {"0": 10**9}}}}},
        {},
        "method.settings",
    ),
]


@pytest.mark.parametrize(("what", "requested", "own", "setting"), REFUSED, ids=[row[0][:60] for row in REFUSED])
def test_more_than_the_file_allows_is_refused_by_the_settings_name(what, requested, own, setting):
    with pytest.raises(FedpeftError) as refused:
        admitted(SitePolicy(**own), job(**requested))
    assert refused.value.setting.startswith(setting)
    assert refused.value.code == "setting-not-allowed"


@pytest.mark.parametrize(
    ("requested", "own"),
    [
        ({"backbone": {"source": default_source("tiny-vilt")}}, {}),
        ({"backbone": {"source": "/srv/vilt"}}, {"sources": ("/srv/vilt",)}),
        ({"backbone": MMBT}, {"sources": (MMBT["source"], MMBT["image_source"])}),
        ({"backbone": MMBT_TRAINED}, {"sources": SOURCES, "connector": True}),
        ({"backbone": MMBT_TRAINED, "method": {"aggregation": "none"}}, {"sources": SOURCES}),
        ({"backbone": {"name": "mmbt-small"}}, {}),
        ({"backbone": {"name": "transformers", "source": "/srv/clip"}}, {"sources": ("/srv/clip",)}),
        ({"data": {"seed": 3}}, {"seed": 3}),
        ({"data": {"validation_fraction": 0.0}}, {"validation_fraction": 0.0}),
        ({"data": {"site": "north"}}, {}),
        (
            {"method": HEAD, "data": {"answers": ["Left  lung", "none"]}},
            {"head": True, "answers": {"manifest": ["NONE", "left lung"]}},
        ),
        ({"method": HEAD, "data": {"dataset": "phantom", "answers": ["yes"]}}, {"head": True}),
        ({"method": HEAD, "data": {"dataset": "fed_isic2019"}}, {"head": True}),
        ({"training": {"compile": True}}, {"compile": True}),
        ({"data": {"dataset": "phantom", "seed": 3, "train_size": 16}}, {}),
        ({"training": {"device": "cpu"}}, {"device": "cuda:1"}),
        ({"training": {"device": "cuda:1"}}, {"device": "cuda:1"}),
        ({"training": {"device": "cuda"}}, {}),
        ({"method": SUMMED}, {"sum_with": MEMBERS}),
        ({"method": {"aggregation": "none"}}, {"sum_with": MEMBERS}),
        ({"data": {"sites": {"south": {"dataset": "phantom"}}}}, {}),
        ({"schedule": {"joins": {"north": 20, "south": 99}}}, {}),
        ({"schedule": {"joins": {"north": 21}}}, {"max_local_epochs": 21}),
        ({"data": {"dataset": "phantom", "train_size": 100}}, {"max_samples": 100, "datasets": ("phantom",)}),
        ({"method": {"name": "full", "aggregation": "fedavg"}}, {"methods": ("full",)}),
        ({"method": adapter("lora", r=8, target_modules=["query"], bias="none", use_rslora=True)}, {}),
        ({"method": adapter("lora", r=64, lora_alpha=128, layers_to_transform=0)}, {}),
        ({"method": adapter("vera", layers_to_transform=1)}, {}),
        ({"method": adapter("fourierft", layers_to_transform=1)}, {}),
        ({"method": adapter("pfeiffer", layer_norm=True)}, {}),
        ({"method": adapter("adapterfusion", layer_norm=False)}, {}),
        ({"method": adapter("compacter", blocks=4, layers=[0, 1], reduction_factor=32)}, {}),
        ({"method": adapter("houlsby", target_modules={"output": "encoder.layer.{layer}.output"})}, {}),
    ],
)
def test_what_the_file_allows_is_not_refused(requested, own):
    assert not list(refusals(SitePolicy(**own), job(**requested)))


HARMLESS = {  # numbers that cost a site nothing, or that are checked elsewhere
    "training.warmup": "a fraction",
    "training.candidates": "there are no more than a site has answers",
    "training.micro_batch": "smaller than a batch",
    "training.patience": "ends a job earlier",
    "training.seed": "of random numbers",
    "training.ditto_lambda": "of the site's own model, which stays there",
    "training.moon_mu": "at most 10, and the gradient of a cosine is bounded",
    "training.moon_temperature": "at least 0.1, for the same reason",
    "backbone.image_grid": "at most 256 tokens beside the question's, which the text encoder's positions bound",
    "data.seed": "the site's own holds",
    "data.validation_fraction": "the site's own holds",
    "data.test_fraction": "the site's own holds",
    "data.unreadable": "the site's own holds",
    "data.parts": "a partition is refused",
    "data.alpha": "a partition is refused",
    "data.samples": "any number is refused",
    "data.train_share": "any share is refused",
    "data.dialects": "questions that are drawn by program are asked in so many ways; none is added",
    "data.label_skew": "other types of question, and as many; its range is checked by the settings",
}


def test_every_number_of_a_job_has_a_limit_or_needs_none():
    sections = {"training": TrainingSettings, "backbone": BackboneSettings, "data": DataSettings}
    numbers = {
        f"{section}.{name}"
        for section, settings in sections.items()
        for name, kind in get_type_hints(settings).items()
        if {int, float} & {kind, *get_args(kind)}
    }
    limited = {
        f"{section}.{field.name}"
        for section, settings in sections.items()
        for field in fields_of(settings)
        if field.metadata.get(MAX_BY) or field.metadata.get(MIN_BY)
    }
    assert numbers == set(HARMLESS) | limited


def test_every_limit_of_a_number_is_one_of_the_sites_file():
    sections = (TrainingSettings, BackboneSettings, DataSettings, MethodSettings, ScheduleSettings)
    declared = [field.metadata for section in sections for field in fields_of(section)]
    maxima = {one.get(MAX_BY, "") for one in declared} - {""}
    minima = {one.get(MIN_BY, "") for one in declared} - {""}
    assert maxima | minima <= {field.name for field in fields_of(SitePolicy)}
    assert minima == {"min_batch_size", "min_probe_samples", "min_score_samples"}
    assert {name for name in maxima if not name.startswith("max_")} == set()


LIMITS = {  # of the site policy, by the setting that it bounds
    "training.rounds": "max_rounds",
    "training.local_epochs": "max_local_epochs",
    "training.first_epochs": "max_local_epochs",
    "training.batch_size": "max_batch_size",
    "training.evaluation_batch_size": "max_batch_size",
    "training.learning_rate": "max_learning_rate",
    "training.head_learning_rate": "max_learning_rate",
    "training.weight_decay": "max_weight_decay",
    "training.proximal_mu": "max_proximal_mu",
    "training.ala_rate": "max_ala_rate",
    "training.threads": "max_threads",
    "training.workers": "max_workers",
    "training.features_mib": "max_kept_mib",
    "training.images_mib": "max_kept_mib",
    "method.probe_samples": "max_probe_samples",
    "schedule.score_samples": "max_score_samples",
    "backbone.image_size": "max_image_size",
    "backbone.text_length": "max_text_length",
    "data.train_size": "max_samples",
    "data.validation_size": "max_samples",
    "data.test_size": "max_samples",
}


def test_each_setting_is_bounded_by_its_own_limit():
    sections = {
        "training": TrainingSettings,
        "method": MethodSettings,
        "schedule": ScheduleSettings,
        "backbone": BackboneSettings,
        "data": DataSettings,
    }
    declared = {
        f"{section}.{field.name}": field.metadata[MAX_BY]
        for section, settings in sections.items()
        for field in fields_of(settings)
        if field.metadata.get(MAX_BY)
    }
    assert declared == LIMITS


def test_a_limit_holds_where_its_setting_is_read():
    policy = SitePolicy(max_ala_rate=0.5)
    plain, fedala = (
        job(method={"aggregation": "fedavg"}, training={"personalization": name}) for name in ("none", "fedala")
    )
    assert "training.ala_rate" not in dict(refusals(policy, plain))
    assert dict(refusals(policy, fedala))["training.ala_rate"] == "is 1.0, max_ala_rate is 0.5"


NO_SITES = {  # objects and lists of a job that name no site
    "method.settings": "by method",
    "method.aggregation": "ways to average",
    "method.pia": "a section of its own",
    "method.pia.share": "by round",
    "method.robust": "a section of its own",
    "schedule.solver_settings": "of a solver, which runs at the server",
    "schedule.score_settings": "of a score",
    "schedule.budget_range": "two numbers",
    "data.columns": "by column",
    "data.window": "gray values",
    "data.exclude": "images",
    "data.answers": "answers",
}


def test_every_setting_that_names_single_sites_says_so():
    """With `sum_with` a site refuses each: what differs between sites shows one site's part of two sums."""
    sections = {
        "method": MethodSettings,
        "method.pia": PIASettings,
        "method.robust": RobustSettings,
        "training": TrainingSettings,
        "backbone": BackboneSettings,
        "data": DataSettings,
        "schedule": ScheduleSettings,
    }
    several, single = set(), set()
    for section, settings in sections.items():
        for field, hint in ((field, get_type_hints(settings)[field.name]) for field in fields_of(settings)):
            if {Mapping, tuple} & {get_origin(part) for part in (hint, *get_args(hint))}:
                several.add(f"{section}.{field.name}")
            if field.metadata.get("by_site"):
                single.add(f"{section}.{field.name}")
    assert not single & set(NO_SITES)
    assert several == single | set(NO_SITES)


def test_a_refusal_of_few_steps_tells_no_more_than_the_announced_number(scans):
    """Otherwise a lead that tries sizes of a batch would find the exact number of samples."""
    policy = SitePolicy(roots={"manifest": str(scans)}, **SMALL, **SUMS)
    for size, allowed in ((4, True), (5, True), (6, False)):  # 18 samples are announced as 20
        chosen = admitted(policy, job(method=SUMMED, training={"batch_size": size}))
        if allowed:
            assert len(load_data(policy, chosen).train) == 18
            continue
        with pytest.raises(FedpeftError, match="lower it to 5") as refused:
            load_data(policy, chosen)
        assert (refused.value.code, refused.value.setting) == ("setting-not-allowed", "training.batch_size")


def test_the_sites_values_hold_where_a_job_says_nothing():
    own = {"validation_fraction": 0.3, "test_fraction": 0.1, "seed": 7, "device": "cpu", "site": "ward 3"}
    chosen = admitted(SitePolicy(roots={"manifest": "/srv/scans"}, **own), job())
    assert (chosen.data.validation_fraction, chosen.data.test_fraction, chosen.data.seed) == (0.3, 0.1, 7)
    assert (str(chosen.data.root), chosen.data.site, chosen.training.device) == ("/srv/scans", "ward 3", "cpu")
    tables = job(data={"dataset": "hugging_face"})
    assert admitted(SitePolicy(columns={"answer": "finding"}), tables).data.columns == {"answer": "finding"}
    lung = {"center": -600, "width": 1500}
    assert admitted(SitePolicy(window=lung), job()).data.window == lung
    other = admitted(SitePolicy(roots={"vqa_rad": "/srv/rad"}), job())
    assert other.data.root is None, "the data set is looked for under FEDPEFT_DATA"


@pytest.fixture
def scans(tmp_path):
    """Twelve images with three questions each, under FEDPEFT_DATA of the site."""
    Image.new("RGB", (8, 8)).save(tmp_path / "scan.png")
    rows = ["image,question,answer,split"]
    for number in range(12):
        (tmp_path / f"{number}.png").write_bytes((tmp_path / "scan.png").read_bytes())
        split = "train" if number < 6 else "validation" if number < 8 else "test"
        rows += [f"{number}.png,What is {word}?,{word},{split}" for word in ("left", "right", "none")]
    (tmp_path / "manifest.csv").write_text("\n".join(rows) + "\n")
    return tmp_path


LISTED = ["left", "right", "none"]
SMALL = {"min_train_samples": 1, "min_train_images": 1, "min_answers": 1, "min_test_samples": 1}
ENOUGH = {"min_train_samples": 18, "min_train_images": 6, "min_answers": 3, "min_test_samples": 12}


def loaded(scans, scheduled=False, **own):
    policy = SitePolicy(roots={"manifest": str(scans)}, **{**SMALL, **own})
    chosen = job(schedule={**SCHEDULED, "score_samples": 64} if scheduled else {})
    return load_data(policy, admitted(policy, chosen))


def test_enough_data_are_loaded(scans):
    assert len(loaded(scans, **ENOUGH).train) == 18


@pytest.mark.parametrize("name", ENOUGH)
def test_too_few_are_refused_without_a_number(scans, name):
    with pytest.raises(FedpeftError, match=name) as refused:
        loaded(scans, **{name: ENOUGH[name] + 1})
    assert (refused.value.code, refused.value.setting) == ("data-too-few", "")


@pytest.mark.parametrize("name", ["min_batch_size", "min_probe_samples"])
def test_data_with_fewer_samples_than_a_step_or_an_order_must_have_are_refused(scans, name):
    """The job's own number is above the least, and only 18 samples are there."""
    chosen = job(method={"probe_samples": 64}, training={"batch_size": 64})
    for least in (18, 19):
        policy = SitePolicy(roots={"manifest": str(scans)}, **SMALL, **{name: least})
        with pytest.raises(FedpeftError, match=f"{name} is 19, these data have 18") if least > 18 else nullcontext():
            load_data(policy, admitted(policy, chosen))


def test_a_share_is_not_chosen_on_few_samples(scans):
    chosen = job(method={"pia": {"share": "validation"}})
    for least in (6, 7):
        policy = SitePolicy(roots={"manifest": str(scans)}, **SMALL, min_validation_samples=least)
        expected = pytest.raises(FedpeftError, match="min_validation_samples") if least > 6 else nullcontext()
        with expected:
            load_data(policy, admitted(policy, chosen))


@pytest.mark.parametrize("setting", ["sampling", "class_weights"])
def test_classes_that_count_alike_leave_no_few_samples_the_training(scans, setting):
    """17 samples of one answer and one of another: the one would be half of the training."""
    rows = (scans / "manifest.csv").read_text().replace(",right,", ",left,").replace(",none,", ",left,").splitlines()
    rows[1] = rows[1].replace(",left,", ",rare,")
    (scans / "manifest.csv").write_text("\n".join(rows) + "\n")
    policy = SitePolicy(roots={"manifest": str(scans)}, **SMALL)
    balanced = job(training={setting: "balanced"})
    assert effective_size([1 / 17] * 17 + [1]) == 3  # 4 / (1 / 17 + 1)
    for limit, chosen, allowed in ((18, job(), True), (3, balanced, True), (4, balanced, False)):
        own = replace(policy, min_train_samples=limit)
        if allowed:
            assert len(load_data(own, admitted(own, chosen)).train) == 18
            continue
        with pytest.raises(
            FedpeftError, match="these data have 3, where the job has all classes count alike"
        ) as refused:
            load_data(own, admitted(own, chosen))
        assert refused.value.code == "data-too-few"


def test_equal_weights_are_worth_all_samples():
    assert all(effective_size([1 / count] * count) == count for count in range(1, 500))
    assert effective_size([]) == 0


@pytest.mark.parametrize("length", [15, 25, 30])
def test_refusals_of_score_rows_do_not_give_the_length_of_an_answer(length):
    """Written answers of 15 to 30 bytes, with begin and end, are refused alike."""
    train = [SimpleNamespace(answer="no"), SimpleNamespace(answer="a" * length)] * 200
    data = SimpleNamespace(labels=(), answers_in_training=2, train=train)
    limits = []
    for samples in range(100, 300):
        scores = SimpleNamespace(score="lntk", score_settings={"target": "logits"}, score_samples=samples)
        chosen = SimpleNamespace(answers=None, schedule=scores, training=SimpleNamespace(answering="generation"))
        try:
            job_against_policy._check_score_rows(SitePolicy(), chosen, data)
        except FedpeftError:
            limits.append(samples)
    assert min(limits) == 2 * 4096 // 32, "scored are 128 of fewer than 256 samples"


def test_scores_over_fewer_samples_than_asked_for_are_refused(scans):
    """Of 18 samples 16 are scored."""
    assert loaded(scans, scheduled=True, min_score_samples=16)
    with pytest.raises(FedpeftError, match="min_score_samples"):
        loaded(scans, scheduled=True, min_score_samples=17)


@pytest.mark.parametrize("name", ["0.png", "./0.png", ".\\0.png", "0.png#0"])
def test_the_site_excludes_its_own_images_and_counts_what_is_left(scans, name):
    excluding = {"exclude": (name, "an image of another data set")}
    found = loaded(scans, **excluding)
    assert len(found.train) == 15
    assert found.notes[-1] == "1 of 2 excluded ids are of no image of these data."
    with pytest.raises(FedpeftError, match="min_train_images"):
        loaded(scans, **excluding, min_train_images=6)


def test_the_site_says_how_many_images_may_be_unreadable_and_those_it_excludes_do_not_count(scans):
    (scans / "1.png").write_bytes(b"no image")
    with pytest.raises(DataError, match="1 of 12 images cannot be read") as refused:
        loaded(scans)
    assert (refused.value.code, refused.value.setting) == ("data-unusable", "")
    assert len(loaded(scans, exclude=("1.png",)).train) == 15
    skipping = loaded(scans, unreadable=0.2)
    assert len(skipping.train) == 15
    assert skipping.left_out == (("its image cannot be read", 3),)
    with pytest.raises(FedpeftError) as refused:
        admitted(SitePolicy(**SMALL), job(data={"unreadable": 0.5}))
    assert refused.value.setting == "data.unreadable"


def test_a_jobs_backbone_leaves_out_no_image_of_a_site_with_a_policy(scans, monkeypatch):
    """An image that one backbone takes and another does not would show itself in the counts of two jobs."""
    allowed = []
    monkeypatch.setattr(
        "fedpeft.data.readable.fitting", lambda data, backbone, share, **_: allowed.append(share) or data
    )
    assert loaded(scans, unreadable=0.2)
    assert allowed == [None]
    bad = {"a": UnreadableImage.of("a", "does not fit", "crop it")}
    said = r"and no job may leave one out .* Or exclude these images in the site policy\."
    with pytest.raises(DataError, match=said) as refused:
        skip_images(loaded(scans), bad, of=100, share=None)
    assert "unreadable" not in str(refused.value)


def test_a_job_cannot_leave_one_image_and_train_on_it(scans, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPEFT_DATA", str(scans))
    sections = json.loads(json.dumps(SECTIONS))
    sections["data"]["exclude"] = [f"{number}.png" for number in range(1, 6)]
    one = Learner.from_sections(sections, site="north", folder=tmp_path / "state")
    assert len({example.image_id for example in one.data.train}) == 1, "as the simulator would"
    with pytest.raises(FedpeftError) as refused:
        Learner.from_sections(sections, site="north", folder=tmp_path / "state", policy=SitePolicy(**SMALL))
    assert refused.value.setting == "data.exclude"


def test_known_and_unknown_ids_are_refused_alike():
    ids = "0.png", "no such image"
    known, unknown = (list(refusals(SitePolicy(), job(data={"exclude": [image]}))) for image in ids)
    assert known == unknown


def with_row(scans, answer):
    """The folder with one more training row."""
    manifest = scans / "manifest.csv"
    manifest.write_text(f"{manifest.read_text()}0.png,What is rare?,{answer},train\n")


def answer_to(scans, tmp_path, asked, answers):
    """What a hostile job gets to know at a site whose file lists `answers`: a problem, or the numbers of its sites."""
    own = {"roots": {"manifest": str(scans)}, "head": True, "answers": {"manifest": answers}}
    sections = {**SECTIONS, "method": HEAD, "data": {"dataset": "manifest", "answers": asked}}
    try:
        learner = Learner.from_sections(
            sections, site="north", folder=tmp_path / "state", policy=SitePolicy(**{**SMALL, **own})
        )
    except Exception as error:  # as the training process does
        failure = Failure.of(error)
        return failure.code, failure.setting
    return len(learner.data.train), learner.head[-1].weight.shape[0]


@pytest.mark.parametrize("asked", [LISTED, [*LISTED, "tuberculosis"], ["left", "tuberculosis"], ["tuberculosis"]])
def test_no_list_of_answers_tells_whether_a_site_has_an_answer(scans, tmp_path, asked):
    without = answer_to(scans, tmp_path, asked, LISTED)
    with_row(scans, "tuberculosis")
    assert answer_to(scans, tmp_path, asked, LISTED) == without
    assert without == ((18, 3) if asked == LISTED else ("setting-not-allowed", "data.answers"))


def test_a_list_of_the_site_holds_for_every_job_so_that_no_two_can_be_subtracted(scans):
    with_row(scans, "tuberculosis")
    policy = SitePolicy(**SMALL, roots={"manifest": str(scans)}, head=True, answers={"manifest": LISTED})
    heads = ({}, {"method": HEAD, "data": {"answers": LISTED}})
    private, federated = (load_data(policy, admitted(policy, job(**changes))) for changes in heads)
    assert len(private.train) == len(federated.train) == 18
    assert federated.left_out == ((UNLISTED, 1),)
    with pytest.raises(FedpeftError, match="min_train_samples"):  # they count what is left
        load_data(replace(policy, min_train_samples=19), admitted(policy, job()))
