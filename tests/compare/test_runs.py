# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Finished runs, and experiments: what is read, what is composed, what is refused."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from full_disk import full_disk
from histories import complete, record, write

from fedpeft.answering.training_settings import TrainingSettings
from fedpeft.backbones import is_tiny
from fedpeft.backbones.images import ImageEncoder
from fedpeft.cli import main
from fedpeft.compare import experiment
from fedpeft.compare.experiment import RUNS, carry_out, earlier, plan, run_missing
from fedpeft.compare.grid import axis_of
from fedpeft.compare.outcome import Outcome, from_json
from fedpeft.compare.published import methods_of, published
from fedpeft.compare.runs import Variant, outcomes, sections_of, variant_of, variants
from fedpeft.compare.table import compared
from fedpeft.core.errors import FedpeftError
from fedpeft.core.files import own_folder
from fedpeft.core.settings import build
from fedpeft.data import is_procedural
from fedpeft.data.registry import DATASETS
from fedpeft.job.composing import compose
from fedpeft.job.federation import site_data
from fedpeft.methods.settings import MethodSettings
from fedpeft.report.wording import Alignment
from fedpeft.scheduling.settings import schedule_of
from fedpeft.server.run_recorder import RunRecorder
from fedpeft.server.update_check import UpdateCheck
from fedpeft.site.learner import Learner

CONFIGS = Path(__file__).parents[2] / "app_configs"
SHORT = "training.rounds=2"


def written(folder, *, settings=None, seed=0, sent=None, **changed):
    made = {**record(seed=seed), **changed}
    made["settings"] = {"training": {"seed": seed}, **(settings or {})}
    for one in made["rounds"]:
        for site in one["sites"].values():
            site |= {} if sent is None else {"sent": sent}
    folder.mkdir(parents=True)
    (folder / "history.json").write_text(json.dumps(made))
    return folder


def test_runs_that_differ_in_their_seed_alone_share_a_row(tmp_path):
    found = outcomes([written(tmp_path / str(seed), seed=seed, sent=9) for seed in (0, 1)])
    assert {one.method for one in found} == {"FedPIA, Houlsby adapters"}
    assert [one.seed for one in found] == [0, 1]
    assert found[0].sent[0]["slake"] == 9


def test_a_finished_run_has_the_places_that_its_alignment_moved(tmp_path):
    made = complete(rounds=2)
    made["settings"] = {"method": {"initialization": "shared"}}
    for one in made["rounds"]:
        one["alignment_report"]["decisions"] = {"a": {"moved": 3, "stayed": 9, "held": 0}}
    (one,) = outcomes([write(tmp_path, made).parent])
    assert one.alignment == Alignment(places=24, moved=6, last=2)
    assert from_json(json.loads(json.dumps(one.as_json())), origin="line") == one


def test_runs_of_one_method_are_named_by_what_differs(tmp_path):
    folders = [written(tmp_path / str(g), settings={"method": {"gamma": g, "same": 1}}) for g in (0, 1)]
    assert [one.method.rpartition(" (")[2] for one in outcomes(folders)] == ["gamma=0)", "gamma=1)"]


def beside(run, backbone):
    """Write a job with this section beside a run, as FLARE keeps it."""
    file = run.parent / "app_server" / "config" / "config_fed_client.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"executors": [{"executor": {"args": {"backbone": backbone}}}]}))
    return file


def test_runs_in_other_backbones_are_named_by_them_where_the_jobs_of_all_are_known(tmp_path):
    """A server does not receive the section, but FLARE keeps the job beside the run."""
    folders = []
    for seed, source in enumerate(("one", "other")):
        folders.append(written(tmp_path / source / "run", seed=seed))
        backbone = {"name": "tiny-vilt", "source": source, **({"image_size": 48} if seed else {})}
        file = beside(folders[-1], backbone)
    assert [one.method.rpartition(" (")[2] for one in outcomes(folders)] == [
        "image_size=null, source=one)",
        "image_size=48, source=other)",
    ]
    file.unlink()
    assert {one.method for one in outcomes(folders)} == {"FedPIA, Houlsby adapters"}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {"name": "tiny-vilt", "text_length": 40}),
        ({"source": "{folder}/weights"}, {"source": "{folder}/job/../weights/"}),
        (
            {"source": "hub/model"},
            {"source": "one", "sites": {site: {"source": "hub/model"} for site in record()["rounds"][0]["sites"]}},
        ),
        ({"name": "vilt"}, {"name": "vilt", "source": "dandelin/vilt-b32-mlm"}),
    ],
    ids=["a default", "a path", "at each site", "the backbone's weights"],
)
def test_one_backbone_written_in_two_ways_is_one_row(tmp_path, first, second):
    (tmp_path / "weights").mkdir()
    (tmp_path / "job").mkdir()
    folders = []
    for seed, backbone in enumerate((first, second)):
        folders.append(written(tmp_path / str(seed) / "run", seed=seed))
        beside(folders[-1], json.loads(json.dumps(backbone).replace("{folder}", str(tmp_path))))
    assert {one.method for one in outcomes(folders)} == {"FedPIA, Houlsby adapters"}


@pytest.mark.parametrize(("chosen", "recipe"), [({}, "full"), ({"text_length": 20}, "")])
def test_a_finished_run_in_another_backbone_has_no_published_figure(tmp_path, chosen, recipe):
    (tmp_path / "own").mkdir()
    run = recorded(tmp_path / "own" / "run", "paper/fedpia_task2", method="full", samples=34_000)
    section = sections_of(CONFIGS, "paper/fedpia_task2", variants(["full"])[0], [])["backbone"]
    beside(run, section | chosen)
    assert outcomes([run])[0].recipe == recipe


@pytest.mark.parametrize(
    ("fourth", "fifth", "names"),
    [
        (1, 4, ["a=0, b=0, c=0, d=0, 1 more", "a=0, b=0, c=0, d=1, 1 more"]),
        (0, 5, ["a=0, b=0, c=0, e=4, 1 more", "a=0, b=0, c=0, e=5, 1 more"]),
        (0, 4, ["a=0, b=0, c=0, 2 more"] * 2),
    ],
    ids=["the fourth setting", "the fifth", "the seed alone"],
)
def test_runs_that_differ_in_a_setting_share_no_row_however_many_there_are(tmp_path, fourth, fifth, names):
    values = ((0, 0, 0, 0, 4), (0, 0, 0, fourth, fifth), (9, 9, 9, 9, 9))
    settings = [{"training": {"seed": seed, **dict(zip("abcde", v, strict=True))}} for seed, v in enumerate(values)]
    found = outcomes([written(tmp_path / str(seed), settings=one) for seed, one in enumerate(settings)])
    told = [one.method.rpartition(" (")[2] for one in found]
    assert told == [f"{name})" for name in (*names, "a=9, b=9, c=9, 2 more")]
    assert [one.seed for one in found] == [0, 1, 2]


def test_settings_of_one_last_name_have_their_whole_names(tmp_path):
    pairs = {"one": ("exact", "own"), "other": ("identity", "drawn")}
    settings = {name: {"method": {"pia": {"solver": a}}, "schedule": {"solver": b}} for name, (a, b) in pairs.items()}
    found = outcomes([written(tmp_path / name, settings=one) for name, one in settings.items()])
    assert [one.method.rpartition(" (")[2] for one in found] == [
        f"method.pia.solver={a}, schedule.solver={b})" for a, b in pairs.values()
    ]


def test_a_history_that_did_not_count_what_was_sent_is_read(tmp_path):
    (one,) = outcomes([written(tmp_path / "run")])
    assert one.sent == ()


def test_a_schedule_makes_another_row(tmp_path):
    folders = [
        written(tmp_path / "all"),
        written(tmp_path / "some", settings={"schedule": {"solver": "exact"}}),
    ]
    assert [one.method.rpartition(" (")[2] for one in outcomes(folders)] == ["solver=-)", "solver=exact)"]


def test_drawn_sites_make_another_row_without_a_published_figure(tmp_path):
    drawn = "schedule.clients_per_round=2"
    folders = [recorded(tmp_path / "every", "paper/fedpia_task2", method="full", samples=34_000)]
    folders += [recorded(tmp_path / "some", "paper/fedpia_task2", drawn, method="full", samples=34_000)]
    every, some = outcomes(folders)
    assert [one.method.rpartition(" (")[2] for one in (every, some)] == ["clients_per_round=-)", "clients_per_round=2)"]
    assert (every.recipe, some.recipe) == ("full", "")


def test_a_site_whose_replies_were_all_refused_has_no_other_data(tmp_path):
    made = {name: complete(2) for name in ("kept", "refused")}
    for one in made["refused"]["rounds"]:
        (site, *_) = one["sites"]
        del one["sites"][site]
        one["rejected"] = {site: "NaN"}
    made["refused"]["settings"] = {**made["refused"]["settings"], "seed": 5}
    folders = [write(tmp_path / name, history).parent for name, history in made.items()]
    kept, refused = outcomes(folders)
    assert (kept.refused, refused.refused) == (0, 2)
    assert refused.figures[-1].keys() < kept.figures[-1].keys()


def test_a_loss_of_one_end_alone_is_drawn(tmp_path):
    made = complete(2)
    for one in made["rounds"]:
        for values in one["sites"].values():
            values |= {"loss_start": 1.0, "loss_end": None}
    (run,) = outcomes([write(tmp_path / "run", made).parent])
    assert len(run.loss_start) == len(run.loss_end) == 2
    assert not any(run.loss_end)


def fewer_examples():
    rounds = record()["rounds"]
    for one in rounds:
        one["sites"]["slake"]["samples"] = 7
    return rounds


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"rounds": record(("a", "b"))["rounds"]}, "runs of different sites cannot be compared"),
        ({"source": "elsewhere"}, "compare runs of one task"),
        ({"rounds": fewer_examples()}, "other numbers of examples at a site"),
        ({"tested": {"slake": {"samples": 16}}}, "other numbers of examples at a site"),
        ({}, "has method, settings and seed of another run"),
    ],
)
def test_runs_that_cannot_be_compared_are_refused(tmp_path, changed, message):
    with pytest.raises(FedpeftError, match=message):
        outcomes([written(tmp_path / "one"), written(tmp_path / "other", **changed)])


def recorded(folder, job, *overrides, method="", samples=9):
    """A run of a job as the server records it, with training samples of all sites together."""
    sections = (
        sections_of(CONFIGS, job, *variants([method]), list(overrides)) if method else compose(CONFIGS, job, overrides)
    )
    recorder = RunRecorder(folder, job=job)
    folder.mkdir()
    sites = sections["federation"]["sites"]
    introductions = {
        site: SimpleNamespace(
            dataset=(dataset := site_data(sections["data"], site)["dataset"]),
            procedural=is_procedural(dataset),
            backbone=sections["backbone"]["name"],
            tiny=is_tiny(sections["backbone"]["name"]),
            metric=site_data(sections["data"], site).get("metric") or DATASETS.get(dataset).metric or "accuracy",
            samples={"train": 8, "test": 4},
            baseline=0.5,
            classes=2,
        )
        for site in sites
    }
    settings = build(MethodSettings, sections["method"], section="method")
    schedule = schedule_of(sections["schedule"], settings.registered)
    recorder.record_handshake(
        settings, build(TrainingSettings, sections["training"], section="training"), introductions, {}, schedule
    )
    figures = {"overall": 0.5, "open": None, "closed": None, "samples": samples // len(sites)}
    history = {**recorder.history, "rounds": [{"round": 1, "sites": dict.fromkeys(sites, figures)}]}
    (folder / "history.json").write_text(json.dumps(history))
    return folder


IN_ALL = {"paper/fedpia_task2": 34_000, "paper/f3ocus_task1_unequal": 22_900, "paper/vit_ham10000": 8_012}


ROWS = (  # of the papers' tables, with what differs from a file of app_configs/methods
    ("paper/fedpia_task2", "fedpia_paper method.name=parallel", "86.8"),
    ("paper/fedpia_task2", "fedpia method.pia.support=weights", "87.1"),
    ("paper/fedpia_task2", "feddat_compacter", "82.0"),
    ("paper/fedpia_task3_albef", "fedpia method.pia.client=false", "64.9†"),
    ("fedpia_task1_albef", "full", "46.9†"),
    ("paper/f3ocus_task1_unequal", "pfeiffer+f3ocus_1_6 schedule.solver=own schedule.score=fishmask", "34.9"),
    (
        "paper/f3ocus_task2_blip2",
        "pfeiffer+f3ocus_1_6+kernel_of_outputs schedule.solver=own schedule.budget_range=[1,12]",
        "78.7†",
    ),
    ("paper/vit_ham10000", "lora_vit method.name=lora_vpt", "78.4†"),
    (
        "paper/vit_ham10000",
        "lora_vit method.settings.lora.start_std=xavier method.settings.lora.r=8 method.settings.lora.lora_alpha=4",
        "84.2†",
    ),
    ("paper/vit_fed_isic2019", "lora_svd method.settings.lora.r=4 method.settings.lora.lora_alpha=2", "72.3†"),
)


@pytest.mark.parametrize(
    ("task", "method"), [("fedpia_task1", "bias"), ("fedpia_task2_albef", "full"), ("vqa_rad", "full")]
)
def test_a_row_that_a_paper_leaves_out_has_no_figure(task, method):
    assert method not in methods_of(f"paper/{task}")


@pytest.mark.parametrize(
    ("job", "method", "overrides", "recipe", "figure"),
    [
        ("paper/fedpia_task2", "", ["training.seed=3", "training.threads=1"], "fedpia_paper", "88.0"),
        ("paper/fedpia_task2", "full", [], "full", "89.0"),
        ("paper/fedpia_task2", "", ["training.learning_rate=0.01"], "", None),
        ("paper/fedpia_task2", "", ["data.sites.ct.dataset=phantom"], "", None),
        ("paper/f3ocus_task1_unequal", "", [], "pfeiffer+f3ocus_1_6+kernel_of_outputs", "40.2"),
        ("paper/f3ocus_task1", "", [], "", None),
        ("paper/vit_ham10000", "", [], "lora_vit", "77.0†"),
        ("paper/vit_ham10000", "vpt", [], "vpt", "78.9†"),
        ("paper/vit_ham10000", "local_full", [], "local_full", "67.4†"),
        ("fedpia_task2", "fedpia_paper", [], "fedpia_paper", "88.0†"),
        ("vqa_rad", "", [], "", None),
        *((job, f"row: {method}", [], method, figure) for job, method, figure in ROWS),
    ],
)
def test_a_finished_run_of_a_published_recipe_has_the_papers_figure(tmp_path, job, method, overrides, recipe, figure):
    run = recorded(tmp_path / "run", job, *overrides, method=method, samples=IN_ALL.get(job, 99))
    (one,) = outcomes([run])
    assert one.recipe == recipe
    table = compared([one], baseline=one.method)
    assert dict(zip(table.columns, table.rows[0], strict=True)).get("published (%)") == figure


@pytest.mark.parametrize(
    ("job", "samples", "why"),
    [
        ("paper/fedpia_task1", 23_000, ""),
        ("paper/fedpia_task4", 73_300, ""),
        ("paper/fedpia_task4", 190_000, "the paper trains on 73,348 samples, ours on 190,000"),
        ("paper/fedpia_task5", 34_300, "the paper's metric is F1 of questions without a definition, ours macro-F1"),
        ("paper/vit_caltech101", 6_941, "of all clients' images together, ours the means of the sites; the paper tr"),
        ("paper/vit_ham10000", 8_012, "the paper's figures are of all clients' images together"),
    ],
)
def test_a_figure_of_another_metric_or_of_other_samples_is_marked_with_the_reason(tmp_path, job, samples, why):
    (one,) = outcomes([recorded(tmp_path / "run", job, samples=samples)])
    table = compared([one], baseline=one.method)
    assert dict(zip(table.columns, table.rows[0], strict=True))["published (%)"].endswith("†") == bool(why)
    marked = [note for note in table.notes if "not comparable" in note]
    assert len(marked) == bool(why)
    assert all(why in note for note in marked)


@pytest.mark.parametrize(("job", "said"), [("paper/fedpia_task2", False), ("paper/fedpia_task3", True)])
def test_below_an_f1_of_labels_stands_that_its_average_is_not_defined(tmp_path, job, said):
    (one,) = outcomes([recorded(tmp_path / "run", job, samples=2_837)])
    notes = compared([one], baseline=one.method).notes
    assert any("how its F1 is averaged over labels" in note for note in notes) == said


@pytest.mark.parametrize(("recipe", "figure"), [("promptfl", 79.96), ("lora", 69.24)])
def test_below_promptfl_stands_that_its_tokens_are_not_told(tmp_path, recipe, figure):
    (one,) = outcomes([recorded(tmp_path / "run", "paper/fedpia_task2", samples=34_000)])
    one = replace(one, recipe=recipe)
    assert published([one]) == {one.method: figure}
    notes = compared([one], baseline=one.method).notes
    assert any("how many tokens PromptFL has; ours has 50" in note for note in notes) == (recipe == "promptfl")


def test_the_forms_of_fedpia_have_names_of_their_own(tmp_path):
    forms = {
        "fedpia_paper": "FedPIA (two branches 0.5), houlsby adapters, tiny-vilt",
        "fedpia": "FedPIA (weight space 0.5), houlsby adapters, tiny-vilt",
        "fedpia_agreement": "FedPIA (weight space by agreement), houlsby adapters, tiny-vilt",
    }
    folders = [recorded(tmp_path / form, "fedpia_task1", method=form) for form in forms]
    assert [one.method for one in outcomes(folders)] == list(forms.values())


def test_a_row_called_by_its_method_names_the_form_of_fedpia():
    texts = ["fedavg", "fedpia", "fedpia_paper", "mine: fedpia", "fedpia_frozen_half"]
    rows = [run.row for run in plan(CONFIGS, "fedpia_task1", variants(texts), [0], [])]
    forms = ["fedpia (weight space 0.5)", "fedpia_paper (two branches 0.5)", "mine"]
    assert rows == ["fedavg", *forms, "fedpia_frozen_half (frozen half 0.5)"]


@pytest.mark.parametrize(
    ("setting", "row"),
    [("training.learning_rate=1e-3,2e-3", "fedpia (weight space 0.5)"), ("method.pia.share=0.5,0.8", "fedpia")],
)
def test_a_sweep_names_the_form_where_its_setting_does_not(setting, row):
    runs = plan(CONFIGS, "fedpia_task1", variants(["fedpia"]), [0], [], axis_of(setting, option="--sweep"))
    assert {run.row for run in runs} == {row}


@pytest.mark.parametrize(
    ("text", "name", "method", "settings"),
    [
        ("fedpia", "fedpia", "fedpia", ()),
        ("pfeiffer+f3ocus", "pfeiffer+f3ocus", "pfeiffer+f3ocus", ()),
        ("keeps a fifth: fedpia method.pia.share=0.8", "keeps a fifth", "fedpia", ("method.pia.share=0.8",)),
    ],
)
def test_what_the_command_line_says(text, name, method, settings):
    (one,) = variants([text])
    assert (one.name, one.method, one.settings) == (name, method, settings)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("local", {"aggregation": "none"}),
        ("fedavg", {"name": "houlsby", "aggregation": ["fedavg", "none"]}),
        ("compacter", {"name": "compacter", "aggregation": ["fedavg", "none"]}),
        ("weights: fedpia method.pia.support=weights", {"name": "houlsby"}),
    ],
)
def test_a_method_replaces_that_of_the_job_and_nothing_else(text, expected):
    (one,) = variants([text])
    sections = sections_of(CONFIGS, "fedpia_task2", one, ["training.rounds=2"])
    assert expected.items() <= sections["method"].items()
    assert sections["data"]["dataset"] == "phantom_modalities"
    assert sections["training"]["rounds"] == 2


def test_a_schedule_stands_behind_a_plus_and_leaves_the_method_as_it_is():
    scheduled, plain = (sections_of(CONFIGS, "f3ocus_task1", v, []) for v in variants(["fedavg+f3ocus", "fedavg"]))
    assert scheduled["schedule"]["solver"]
    assert not plain["schedule"]
    assert scheduled["method"] == plain["method"]


TASK_LAST = {"own": {"aggregation": "fedavg", "probe_samples": 9}, "plain": {"probe_samples": 9}}


@pytest.fixture
def task_last(tmp_path):
    """Two jobs whose tasks come after the method: `own` sets of it what a row's file sets, and a schedule."""
    (tmp_path / "tasks").mkdir()
    for name, method in TASK_LAST.items():
        task = {"training": {"rounds": 3}, "method": method, "schedule": {"solver": "drawn", "budget": 1}}
        if name == "plain":
            del task["schedule"]
        (tmp_path / "tasks" / f"{name}.yml").write_text(json.dumps(task))
    parts = "tasks/phantom, backbones/tiny_vilt, methods/pfeiffer, deployments/laptop"
    (tmp_path / "jobs.yml").write_text("".join(f"{name}: [{parts}, tasks/{name}]\n" for name in TASK_LAST))
    return tmp_path


@pytest.mark.parametrize("method", ["fedavg", "lora_svd", "local", "compacter", "fedavg+f3ocus"])
def test_a_row_named_after_files_has_their_settings_beside_a_task_that_sets_others(task_last, method):
    (row,) = variants([method])
    found, plain = (sections_of(task_last, job, row, ["training.seed=5"]) for job in TASK_LAST)
    assert found == plain
    assert (found["method"]["probe_samples"], found["training"]["rounds"], found["training"]["seed"]) == (9, 3, 5)


def test_the_jobs_own_row_keeps_what_its_task_sets(task_last):
    row = variant_of(task_last, "own")
    assert sections_of(task_last, "own", row, ["training.seed=5"]) == compose(task_last, "own", ["training.seed=5"])
    assert sections_of(task_last, "own", row, [])["method"]["aggregation"] == "fedavg"


@pytest.mark.parametrize("texts", [["nope"], ["fedavg+nope"], ["x:"], ["local", "local"], [": local"]])
def test_names_of_no_method_are_refused(texts):
    with pytest.raises(FedpeftError, match=r"method|schedule"):
        [sections_of(CONFIGS, "fedpia_task1", one, []) for one in variants(texts)]


def small(*methods, seeds=(0,), rounds=1):
    sizes = ["data.train_size=8", "data.validation_size=4", "data.test_size=8", "training.local_epochs=1"]
    sites = ["federation.sites=[slake, vqa-rad]", f"training.rounds={rounds}", "method.probe_samples=8"]
    return plan(CONFIGS, "fedpia_task1", variants(methods), seeds, [*sizes, *sites])


VISION = ["vit_ham10000", "paper/vit_caltech101"]


@pytest.mark.parametrize("task", VISION)
@pytest.mark.parametrize(
    ("method", "head"),
    [
        *((name, "federated") for name in ("vpt", "classifier", "full", "lora_vit")),
        *((name, "private") for name in ("local", "local_full")),
    ],
)
def test_the_vision_tasks_exchange_the_head_with_any_method_that_exchanges(task, method, head):
    section = sections_of(CONFIGS, task, *variants([method]), [])["method"]
    assert build(MethodSettings, section, section="method").head == head
    other = sections_of(CONFIGS, "fedpia_task1", *variants([method]), [])["method"]
    assert build(MethodSettings, other, section="method").head == ("federated" if method == "lora_vit" else "private")


@pytest.mark.parametrize("task", VISION)
def test_the_documented_method_of_the_vision_papers_local_training_trains_everything(task):
    page = (CONFIGS.parent / "docs" / "papers.md").read_text()
    (documented,) = set(re.findall(r"(?:,|: )(local\w*)", page))
    section = sections_of(CONFIGS, task, *variants([documented]), [])["method"]
    method = build(MethodSettings, section, section="method")
    assert (method.name, method.aggregation, method.head) == ("full", "none", "private")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["vpt", "local_full"])
def test_the_balanced_accuracy_of_all_sites_is_counted_on_the_images_of_all(method, monkeypatch):
    made = {}

    def kept(sections, *, site, **others):
        made[site] = from_sections(sections, site=site, **others)
        return made[site]

    from_sections = Learner.from_sections
    monkeypatch.setattr(Learner, "from_sections", kept)
    words = ["data.train_size=16", "data.validation_size=4", "data.test_size=12", "data.parts=2"]
    words += ["federation.sites=[client-1, client-2]", "training.rounds=1", "training.local_epochs=1"]
    done = carry_out(plan(CONFIGS, "vit_ham10000", variants([method]), (0,), words)[0])
    right, images = Counter(), Counter()
    for learner in made.values():
        for example in learner.data.test:
            images[example.answer] += 1
            right[example.answer] += learner.evaluate([example])["overall"]
    assert done.pooled == (pytest.approx(sum(right[name] / count for name, count in images.items()) / len(images)),)
    assert done.samples == {site: len(learner.data.train) for site, learner in made.items()}
    assert len(images) > 2


@pytest.mark.slow
@pytest.mark.parametrize(("counted", "pooled"), [((0.5, None), (0.5, None)), ((None, None), ())])
def test_a_round_in_which_no_site_was_counted_keeps_its_place(counted, pooled, monkeypatch):
    of_rounds = iter(counted)
    monkeypatch.setattr(experiment, "pooled_balanced_accuracy", lambda _: next(of_rounds))
    assert carry_out(small("fedavg", rounds=2)[0]).pooled == pooled


@pytest.mark.slow
@pytest.mark.parametrize(("method", "kept"), [("fedpia_paper", 0), ("fedavg+f3ocus", 8)])
def test_the_sites_of_a_run_share_one_backbone_and_reach_the_same(method, kept, monkeypatch):
    made = {}

    def noted(sections, *, site, shared, **others):
        made[site] = from_sections(sections, site=site, shared=shared if shares else None, **others)
        return made[site]

    from_sections = Learner.from_sections
    monkeypatch.setattr(Learner, "from_sections", noted)
    (run,) = small(method, rounds=2)
    run = replace(run, sections={**run.sections, "training": {**run.sections["training"], "features_mib": kept}})
    found = {}
    for shares in (True, False):
        one = carry_out(run)
        found[shares] = (one.figures, one.validation, one.sent, one.alignment)
        assert len({id(learner.backbone) for learner in made.values()}) == (1 if shares else 2)
    assert found[True] == found[False]
    assert set(one.validated) == set(one.validation[-1]) == {"slake", "vqa-rad"}


def test_files_of_any_name_lie_beside_the_images(monkeypatch):
    settings = set()
    for listing in ("notes.txt:1", "notes\udcff.txt:1"):
        monkeypatch.setattr(experiment, "_files_of", lambda _, listing=listing: listing)
        settings |= {run.settings for run in small("fedavg")}
    assert len(settings) == 2


@pytest.mark.slow
def test_a_process_encodes_an_image_once_for_all_of_its_runs(encoders, monkeypatch):
    experiment._encoded_images.cache_clear()
    encoded, calls = ImageEncoder._encoded, []
    monkeypatch.setattr(ImageEncoder, "_encoded", lambda self, image: calls.append(image) or encoded(self, image))
    (run,) = small("fedavg")
    method = {**run.sections["method"], "settings": {"houlsby": {"reduction_factor": 4}}}
    training = {**run.sections["training"], "features_mib": 64}
    run = replace(run, sections={**run.sections, "backbone": encoders, "method": method, "training": training})
    first, once = carry_out(run), len(calls)
    assert once > 0
    assert carry_out(run).figures == first.figures
    assert len(calls) == once
    experiment._encoded_images.cache_clear()


@pytest.mark.slow
def test_what_a_secure_sum_sends_has_8_bytes_a_number():
    plain, masked = (
        carry_out(replace(run, sections={**run.sections, "method": {**run.sections["method"], "secure_sum": secure}}))
        for run in small("fedavg")
        for secure in (False, True)
    )
    assert masked.sent[0]["slake"] == 2 * plain.sent[0]["slake"] > 0
    assert masked.megabytes_a_round() == 2 * plain.megabytes_a_round()


@pytest.mark.slow
def test_an_experiment_goes_on_where_it_ended(tmp_path):
    runs = small("fedavg", "local", seeds=(0, 1))
    assert earlier(tmp_path, runs) == []
    done = carry_out(runs[0])
    assert set(done.figures[0]) == {"slake", "vqa-rad"}
    assert done.megabytes()[-1] > 0
    assert done.alignment == Alignment()
    (tmp_path / RUNS).write_text(json.dumps(done.as_json()) + "\n")
    assert earlier(tmp_path, runs) == [done]
    assert done.loss_course == ()
    training = {**runs[0].sections["training"], "measure": "steps"}
    measured = carry_out(replace(runs[0], sections={**runs[0].sections, "training": training}))
    assert measured.figures == done.figures
    assert [[set(sites) for sites in rounds] for rounds in measured.loss_course] == [[{"slake", "vqa-rad"}]] * 20
    assert earlier(tmp_path, small("fedavg", "local", seeds=(0, 1), rounds=2)) == []


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("training.seed=3", "are those of --seeds"),
        ("data.seed = 3", "are those of --seeds"),
        ("federation.tracking=mlflow", "here no server of FLARE sends figures"),
        ("federation.resume_from=latest", "runs begin anew: add --set"),
    ],
)
def test_what_a_comparison_decides_itself_is_no_setting(setting, reason):
    with pytest.raises(FedpeftError, match=reason):
        plan(CONFIGS, "fedpia_task1", variants(["local"]), (0, 1), [setting])
    with pytest.raises(FedpeftError, match=reason):
        plan(CONFIGS, "fedpia_task1", [Variant(name="x", method="local", settings=(setting,))], (0, 1), [])


def test_sums_at_relays_are_no_setting_where_there_are_none():
    with pytest.raises(FedpeftError, match="there are no relays here"):
        plan(CONFIGS, "fedpia_task1", variants(["fedavg"]), (0,), ["federation.sums_at_relays=true"])


@pytest.mark.parametrize(
    ("row", "more", "recipe"),
    [
        ("local", [], "local"),
        ("local", [SHORT], ""),
        ("by weights: fedpia method.pia.support=weights", [], "fedpia method.pia.support=weights"),
    ],
)
def test_a_row_without_settings_of_all_rows_has_a_recipe(row, more, recipe):
    assert plan(CONFIGS, "fedpia_task1", variants([row]), (0,), more)[0].recipe == recipe


@pytest.mark.slow
def test_a_run_that_fails_does_not_end_the_others(tmp_path):
    fine, broken = small("local"), small("fedavg")
    section = {**broken[0].sections, "backbone": {"name": "vilt", "source": str(tmp_path / "nowhere")}}
    runs = [replace(broken[0], sections=section), *fine]
    done = []
    (sentence,) = run_missing(tmp_path, runs, processes=1, finished=done.append).values()
    assert sentence.startswith("fedavg, seed 0: ")
    assert [one.method for one in done] == ["local"]


def test_settings_of_a_method_that_no_row_has_are_refused():
    common, rows = ["method.settings.lora.r=2"], variants(["local", "lora"])
    assert len(plan(CONFIGS, "fedpia_task1", rows, (0,), common)) == 2
    with pytest.raises(FedpeftError, match=r"method\.settings\.lora changes nothing: no row of the comparison has"):
        plan(CONFIGS, "fedpia_task1", rows[:1], (0,), common)
    own = Variant(name="x", method="fourierft", settings=tuple(common))
    with pytest.raises(
        FedpeftError, match=r"method\.settings\.lora changes nothing in row 'x', whose method is fourierft"
    ):
        plan(CONFIGS, "fedpia_task1", [own, *rows], (0,), [])


SWEEPS = ("method.pia.gamma=0,1", "training.optimizer=adamw,sgd")


def test_a_sweep_is_read_by_some_row_and_need_not_be_by_all():
    gammas, optimizers = (axis_of(text, option="--sweep") for text in SWEEPS)
    assert len(plan(CONFIGS, "fedpia_task1", variants(["local", "fedavg", "fedpia"]), (0,), [], gammas)) == 6
    with pytest.raises(FedpeftError, match=r"method\.pia\.gamma changes nothing in row 'local'"):
        plan(CONFIGS, "fedpia_task1", variants(["local", "fedavg"]), (0,), [], gammas)
    own = Variant(name="x", method="fedavg", settings=("training.optimizer_state=reset",))
    assert len(plan(CONFIGS, "fedpia_task1", [own], (0,), [], optimizers)) == 2


@pytest.mark.parametrize("setting", ["training.moon_temperature=0.3", "training.ditto_lambda=1", "schedule.budget=3"])
def test_a_setting_that_changes_nothing_in_any_row_is_refused(setting):
    with pytest.raises(FedpeftError, match=f"{setting.partition('=')[0]} changes nothing in row 'local'"):
        plan(CONFIGS, "fedpia_task1", variants(["local", "fedavg"]), (0,), [setting])
    if setting.startswith("schedule"):
        assert plan(CONFIGS, "fedpia_task1", variants(["local", "pfeiffer+f3ocus"]), (0,), [setting])


@pytest.mark.parametrize(
    ("rows", "refused"), [(["compacter", "lora"], True), (["pfeiffer"], True), (["fedavg"], False)]
)
def test_a_row_that_is_called_by_its_method_keeps_it(rows, refused):
    chosen = "method.name=houlsby"
    if refused:
        with pytest.raises(FedpeftError, match=f"the row '{rows[0]}' stands for the method of its name"):
            plan(CONFIGS, "fedpia_task1", variants(rows), (0,), [chosen])
    else:
        assert plan(CONFIGS, "fedpia_task1", variants(rows), (0,), [chosen])[0].sections["method"]["name"] == "houlsby"
    named = [Variant(name="K", method="pfeiffer")]
    assert plan(CONFIGS, "fedpia_task1", named, (0,), [chosen])[0].sections["method"]["name"] == "houlsby"


def test_rows_of_methods_are_not_swept_over_methods():
    axis = axis_of("method.name=houlsby,lora", option="--sweep")
    with pytest.raises(FedpeftError, match="the row 'compacter' stands for the method of its name"):
        plan(CONFIGS, "fedpia_task1", variants(["compacter", "lora"]), (0,), [], axis)
    assert len(plan(CONFIGS, "f3ocus_task1", variants(["pfeiffer+f3ocus"]), (0,), [], axis)) == 2


@pytest.mark.slow
def test_the_first_row_stays_the_baseline_where_one_of_its_runs_failed(tmp_path, capsys, monkeypatch):
    def some_fail(folder, runs, *, processes, finished):
        ended = [run for run in runs if (run.method, run.seed) != ("fedavg", 0)]
        (folder / RUNS).parent.mkdir(exist_ok=True)
        (folder / RUNS).write_text("".join(json.dumps(made_up(run).as_json()) + "\n" for run in ended))
        return {runs[0].key: "fedavg, seed 0: no room"}

    monkeypatch.setattr(experiment, "run_missing", some_fail)
    command = [
        "compare",
        "fedpia_task1",
        "--configs",
        str(CONFIGS),
        "--methods",
        "fedavg,local",
        "--out",
        str(tmp_path),
    ]
    assert main(command) == 1
    assert (tmp_path / "comparison.csv").read_text().startswith("method,")
    assert "minus fedavg" in (tmp_path / "comparison.md").read_text()
    assert "no room" in capsys.readouterr().err


def made_up(run):
    sites = list(run.sections["federation"]["sites"])
    return Outcome(
        task=run.task,
        method=run.method,
        seed=run.seed,
        settings=run.settings,
        figures=(dict.fromkeys(sites, 0.5 + 0.1 * run.seed),),
        sent=(),
        metrics=dict.fromkeys(sites, "accuracy"),
        seconds=1,
        procedural=True,
        tiny=True,
    )


@pytest.mark.parametrize("option", ["--set=training.rounds=9", "--seeds=7", "--configs=nowhere", "--processes=1"])
def test_options_of_an_experiment_are_refused_beside_finished_runs(option, tmp_path, capsys):
    write(tmp_path / "run", complete(rounds=1))
    assert main(["compare", str(tmp_path / "run"), option]) == 1
    assert f"{option.partition('=')[0]} changes nothing where finished runs are compared" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{}\n{", r"line 1 is not a run"),
        (b"\xed\n{}", r"line 1 is not JSON"),
        ("{}".encode("utf-16"), r"line 1 is not JSON"),
    ],
    ids=["no run", "another encoding", "UTF-16"],
)
def test_a_damaged_file_is_refused_with_the_line(content, reason, tmp_path):
    (tmp_path / RUNS).write_bytes(content)
    with pytest.raises(FedpeftError, match=rf"runs\.jsonl, {reason}"):
        earlier(tmp_path, small("fedavg"))


@pytest.mark.parametrize("name", ["alpha_pattern", "n_frequency_pattern"])
def test_the_order_of_patterns_makes_another_run(name):
    """PEFT takes the first pattern that matches."""
    first, other = (
        replace(small("fedavg")[0], sections={"method": {"settings": {"any": {name: patterns}}}})
        for patterns in ({"query": 4, "layer.1.query": 8}, {"layer.1.query": 8, "query": 4})
    )
    assert first.settings != other.settings


def test_a_row_keeps_its_own_settings_beside_nested_ones_of_the_task(tmp_path):
    """What `fedpeft new` and `tune` write comes last, and may hold no other setting of a section that the row has."""
    (tmp_path / "tasks").mkdir()
    for name, method in (("own", {"pia": {"gamma": 0.5}, "settings": {"lora": {"r": 2}}}), ("plain", {})):
        (tmp_path / "tasks" / f"{name}.yml").write_text(json.dumps({"training": {"rounds": 3}, "method": method}))
    parts = "tasks/phantom, backbones/tiny_vilt, methods/pfeiffer, deployments/laptop"
    (tmp_path / "jobs.yml").write_text("".join(f"{name}: [{parts}, tasks/{name}]\n" for name in ("own", "plain")))
    for method in ("fedpia_agreement", "lora_vit"):
        (row,) = variants([method])
        found, plain = (sections_of(tmp_path, job, row, [])["method"] for job in ("own", "plain"))
        assert {**found.get("pia", {}), "gamma": 0} == {**plain.get("pia", {}), "gamma": 0}
        assert found["settings"]["lora"] == plain["settings"]["lora"] if method == "lora_vit" else "pia" in found


@pytest.mark.slow
def test_the_command_runs_what_is_missing_and_writes_tables_picture_and_page(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(experiment, "ProcessPoolExecutor", lambda count, **_: ThreadPoolExecutor(1))
    words = ["data.train_size=8", "data.validation_size=4", "data.test_size=8", "training.local_epochs=1"]
    words += ["federation.sites=[slake, vqa-rad]", "training.rounds=1", "method.probe_samples=8"]
    options = [option for word in words for option in ("--set", word)]
    methods = "fedavg,fedpia"
    command = ["compare", "jobs/fedpia_task1", "--configs", str(CONFIGS), "--methods", methods, "--seeds", "1"]
    assert main([*command, *options, "--out", str(tmp_path)]) == 0
    assert sorted(file.suffix for file in tmp_path.iterdir()) == [".csv", ".html", ".jsonl", ".md", ".svg", ".tex"]
    lines = (tmp_path / RUNS).read_text()
    assert main([*command, *options, "--out", str(tmp_path)]) == 0
    assert (tmp_path / RUNS).read_text() == lines
    said = "fedpia (weight space 0.5): 0 of 48 places moved: sites that start from one adapter stay aligned.\n"
    assert capsys.readouterr().out.count(said) == 2  # of a run that is new, and of one that is read


@pytest.mark.slow
def test_the_command_compares_finished_runs_with_a_named_baseline_over_their_last_rounds(tmp_path):
    for name, method in (("one", "FedPIA"), ("two", "other")):
        write(tmp_path / name, complete(rounds=3) | {"method": method})
    folders = [str(tmp_path / name) for name in ("one", "two")]
    assert main(["compare", *folders, "--baseline", "other", "--last", "2", "--out", str(tmp_path / "out")]) == 0
    text = (tmp_path / "out" / "comparison.md").read_text()
    assert "minus other" in text
    assert "mean of the last 2 of 3 rounds" in text


@pytest.mark.slow
def test_a_failed_run_is_compared_and_said_to_have_failed(tmp_path, capsys):
    for name, method in (("one", "FedPIA"), ("two", "other")):
        write(tmp_path / name, complete(rounds=1) | {"method": method})
    failed = {"job": "fedpia_task1", "status": "failed", "reason": "the run was cut off."}
    (tmp_path / "two" / "manifest.json").write_text(json.dumps(failed))
    folders = [str(tmp_path / name) for name in ("one", "two")]
    assert main(["compare", *folders, "--out", str(tmp_path / "out")]) == 0
    assert "the run was cut off" in capsys.readouterr().out
    for kind in ("md", "html"):
        assert "the run was cut off" in (tmp_path / "out" / f"comparison.{kind}").read_text()


@pytest.mark.slow
def test_a_comparison_keeps_no_picture_of_an_earlier_one(tmp_path):
    measured = complete(rounds=1)
    for values in measured["rounds"][0]["sites"].values():
        values |= {"loss_start": 2.0, "loss_end": 1.0}
    out = tmp_path / "out"
    for made, there in ((measured, True), (complete(rounds=1), False)):
        write(tmp_path / "run", made)
        assert main(["compare", str(tmp_path / "run"), "--out", str(out)]) == 0
        assert (out / "losses.svg").exists() == there
    assert (out / "comparison.svg").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "add --methods"),
        (["fedpia_task1", "--methods", "local", "--baseline", "z"], "is none of local"),
        (["fedpia_task1", "more", "--methods", "local"], "name one job"),
        (["fedpia_task1", "--methods", "local", "--seeds", "0"], "--seeds is 0"),
        (["fedpia_task1", "--methods", "local", "--processes", "3000000000"], "it must be from 1 to 1,000"),
    ],
)
def test_wrong_input_gives_one_sentence(arguments, message, capsys):
    assert main(["compare", *arguments, "--configs", str(CONFIGS)]) == 1
    assert message in capsys.readouterr().err


def test_a_run_whose_sites_would_have_one_folder_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPEFT_DATA", str(tmp_path))
    (tmp_path / "manifest.csv").write_text("image,label\n")
    words = ["data.dataset=manifest", "federation.sites=[north, south]", "backbone.name=tiny-vit"]
    (run,) = plan(CONFIGS, "fedpia_task1", variants(["fedavg"]), (0,), words)
    with pytest.raises(FedpeftError, match="sites north and south would both have all samples of"):
        carry_out(run)


def test_a_run_on_other_files_or_another_version_is_another_run(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPEFT_DATA", str(tmp_path))
    words = ["data.dataset=manifest", "federation.sites=[north]", "backbone.name=tiny-vit", "method.pia.client=false"]

    def settings():
        return plan(CONFIGS, "fedpia_task1", variants(["fedavg"]), (0,), words[:3])[0].settings

    without = settings()
    table = tmp_path / "north" / "manifest.csv"
    table.parent.mkdir()
    table.write_text("image,label\n")
    first = settings()
    assert first == settings() != without
    table.write_text("image,label\na.png,b\n")
    second = settings()
    assert second != first
    monkeypatch.setattr("fedpeft.__version__", "9.9")
    assert settings() not in (first, second)


def test_a_row_of_another_configuration_has_no_published_figure(tmp_path):
    configs = tmp_path / "app_configs"
    shutil.copytree(CONFIGS, configs)
    kept, changed = (plan(configs, "paper/fedpia_task1", variants([name]), (0,), []) for name in ("fedavg", "lora"))
    assert [one.recipe for one in (*kept, *changed)] == ["fedavg", "lora"]
    own = configs / "methods" / "fedavg.yml"
    own.write_text(f"{own.read_text()}\ntraining: {{rounds: 2}}\n")
    assert plan(configs, "paper/fedpia_task1", variants(["fedavg"]), (0,), [])[0].recipe == ""


@pytest.mark.slow
@pytest.mark.parametrize("quorum", [0, 1])
def test_a_reply_that_the_update_check_refuses_is_in_no_figure(monkeypatch, quorum):
    """As in the simulator: too few of them end the run."""
    monkeypatch.setattr(UpdateCheck, "outlying", lambda *_, **__: {"slake": "too far"})
    (run,) = small("fedavg", rounds=1)
    run = replace(run, sections={**run.sections, "federation": {**run.sections["federation"], "quorum": quorum}})
    if quorum == 0:
        with pytest.raises(FedpeftError, match=r"too few valid replies \(1, the quorum is 2\)"):
            carry_out(run)
        return
    done = carry_out(run)
    assert done.refused == 1
    assert [*done.figures[0]] == [*done.sent[0]] == ["vqa-rad"]
    assert "Missing or refused, and in no figure: 1 reply." in compared([done], baseline="fedavg").notes


def test_the_validation_figure_of_drawn_sites_is_of_their_last_rounds():
    metrics = {"north": "accuracy", "south": "accuracy"}
    rounds = ({"north": 0.2, "south": 0.4}, {"north": 0.6})
    one = Outcome(
        task="t", method="m", seed=0, figures=rounds, sent=(), metrics=metrics, seconds=1.0, procedural=False,
        tiny=False, validation=rounds,
    )  # fmt: skip
    assert one.validation_figure() == pytest.approx(50)


def test_a_link_to_nothing_hides_no_other_file(tmp_path):
    """As in a folder whose images were fetched in part: a run may not look at them."""
    (tmp_path / "manifest.csv").write_text("first")
    (tmp_path / "far.png").symlink_to(tmp_path / "nowhere")
    listed = []
    for text in ("first", "second, longer"):
        (tmp_path / "manifest.csv").write_text(text)
        experiment._list_files.cache_clear()
        listed.append(experiment._list_files(tmp_path))
    assert all("manifest.csv" in text for text in listed)
    assert listed[0] != listed[1]


def test_a_run_is_not_that_of_another_plugin(tmp_path, monkeypatch):
    package, other = tmp_path / "first" / "of_a_plugin", tmp_path / "second" / "of_a_plugin"
    for folder in (package, other):  # two parts of a namespace
        folder.mkdir(parents=True)
        monkeypatch.syspath_prepend(folder.parent)
    (other / "beside.py").write_text("")
    points = EntryPoints([EntryPoint("mine", "of_a_plugin.own:WIDTH", "fedpeft.methods")])
    monkeypatch.setattr(experiment, "entry_points", lambda **chosen: points.select(**chosen))
    digests = set()
    for source in ("WIDTH = 1", "WIDTH = 2"):
        (package / "own.py").write_text(source)
        (run,) = plan(CONFIGS, "fedpia_task1", variants(["fedavg"]), [0], [])
        digests.add(run.settings)
    assert len(digests) == 2
    assert "of_a_plugin" not in sys.modules


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_runs_end_with_their_command(tmp_path, monkeypatch, how):
    """Those that the pool has handed on already, which it cannot cancel, end too, and leave no state behind."""
    fedpeft, small = Path(sys.executable).with_name("fedpeft"), ["training.rounds=1000", "data.train_size=16"]
    what = ["fedpia_task1", "--methods", "fedavg", "--seeds", "3", "--processes", "1", "--out", tmp_path]
    command = [fedpeft, "compare", *what, *(part for one in small for part in ("--set", one))]
    heard = partial(signal.signal, signal.SIGINT, signal.default_int_handler)  # a shell may have had it ignored
    here = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, preexec_fn=heard, env=here) as comparing:
        parent = psutil.Process(comparing.pid)
        while not list(tmp_path.glob(".fedpeft-run-*/*/*")):
            assert comparing.poll() is None
            time.sleep(0.1)
        started = parent.children()
        comparing.send_signal(how)
        assert comparing.wait() == (130 if how == signal.SIGINT else -how)
    assert started
    assert not psutil.wait_procs(started, timeout=60)[1]
    if how == signal.SIGKILL:  # the next run does it
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        with own_folder(experiment.STATE):
            pass
    assert not list(tmp_path.glob(".fedpeft-run*"))


def test_a_run_that_finds_no_room_for_its_line_leaves_none(tmp_path, monkeypatch):
    fine = small("local")
    monkeypatch.setattr(experiment, "ProcessPoolExecutor", lambda count, **_: ThreadPoolExecutor(1))
    long = SimpleNamespace(as_json=lambda: {"text": "x" * 100})
    monkeypatch.setattr(experiment, "carry_out", lambda run: long)
    with full_disk(50), pytest.raises(OSError, match="too large"):
        run_missing(tmp_path, fine, processes=1, finished=print)
    assert (tmp_path / RUNS).read_text() == ""
