# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
import json
import re
from contextlib import nullcontext
from copy import deepcopy
from functools import reduce
from itertools import product
from pathlib import Path

import pytest
from grids import each

from fedpeft import adapters, backbones, importance, scheduling
from fedpeft.cli import main
from fedpeft.core.errors import FedpeftError
from fedpeft.core.settings import build
from fedpeft.core.workspace import COMPONENTS, resources, seed
from fedpeft.flare.policy import default_scope
from fedpeft.job.composing import (
    PACKAGED,
    check_sections,
    check_used,
    compose,
    compose_sections,
    known_jobs,
    outdated,
    overlay,
    part_of,
    recipes,
    write_job,
)
from fedpeft.job.federation import site_backbone, site_data
from fedpeft.job.settings import SiteJob
from fedpeft.job.strict_files import setting_names
from fedpeft.methods.settings import MethodSettings

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "app_configs"
JOBS = sorted(recipes(CONFIGS))
HALF = "cases/many_epochs"  # of fedpia_task1's sites, without what needs one width
SOLVED = ("schedule.budget=1", "method.pia.share=0.5")
BUDGETED = ("schedule.site_budgets={slake: 3}", "schedule.budget=2", "schedule.solver=exact", "method.pia.share=0.5")
POOLED = ("federation.sites=[center]", "data.sites={center: {pool: [slake]}, slake: {dataset: slake}}")
MEDIAN = ("method.robust.average=median", "method.pia.share=0.5")
MOMENTUM = ("method.server_optimizer=momentum", "method.pia.client=false")
BLIP2 = ("backbone.name=blip2", "backbone.source=x")
RANKED = ("backbone.name=tiny-albef-decoder", "training.answering=ranking")
HEAD = ("method.name=classifier", "method.aggregation=none")
MMBT_TRAINED = ("backbone.name=mmbt-small", "backbone.projection=trained")
MMBT_AT_ONE = ("backbone.sites={slake: {name: mmbt-small, projection: trained}}",)
SEVERAL, MATCHED = "backbone.sites={slake: {source: /models/vilt-6}}", "method.matched_layers=12"


@pytest.mark.slow
@each("job", JOBS)
def test_job_folders_are_what_app_configs_say(job):
    assert outdated(ROOT / "jobs" / job, job, compose(CONFIGS, job)) == []


@each("job", JOBS)
def test_jobs_carry_no_code(job):
    assert {p.suffix for p in (ROOT / "jobs" / job).rglob("*") if p.is_file()} == {".json"}
    assert not list((ROOT / "jobs" / job).rglob("custom"))


def test_the_allow_list_holds_the_components_of_jobs_and_sites_and_nothing_else():
    scope = default_scope()["scopes"][0]
    used = {entry["path"] for chain in ("task_data_filters", "task_result_filters") for entry in scope[chain]}
    for file in (ROOT / "jobs").rglob("config_fed_*.json"):
        text = json.loads(file.read_text())
        used |= {component["path"] for component in [*text["components"], *text.get("workflows", [])]}
        used |= {entry["executor"]["path"] for entry in text.get("executors", [])}
    assert used == set(COMPONENTS)


def test_the_committed_allow_list_is_ours_alone():
    assert json.loads((ROOT / "simulator_workspace/local/resources.json").read_text()) == resources()


def test_one_argument_gives_a_variant(tmp_path):
    sections = compose(CONFIGS, "fedpia_task1", ["method.name=compacter", "training.rounds=2"])
    write_job(tmp_path, "fedpia_task1", sections)
    client = json.loads((tmp_path / "app/config/config_fed_client.json").read_text())
    settings = client["executors"][0]["executor"]["args"]
    assert settings["method"]["name"] == "compacter"
    assert settings["training"]["rounds"] == 2


SCORED, POPULATION = "paper/f3ocus_task1", "schedule.solver_settings.population=20"
OF_SCORE, OF_HOULSBY = "schedule.score_settings", "method.settings.houlsby"
OF_LNTK = {"target": "logits", "directions": 4}  # what that job sets


@pytest.mark.slow
@each("solver", ["own", *scheduling.names()])
@each("score", importance.names())
def test_a_score_takes_its_own_settings_along_and_drops_those_of_another(score, solver):
    chosen = [f"schedule.solver={solver}", f"schedule.score={score}"]
    schedule = compose(CONFIGS, SCORED, chosen)["schedule"]
    assert (schedule["solver"], schedule["score"]) == (solver, score)
    assert schedule.get("score_settings", {}) == (OF_LNTK if score == "lntk" else {})


@pytest.mark.parametrize("order", [1, -1])
def test_settings_of_a_new_score_or_solver_are_kept_in_any_order_of_arguments(order):
    chosen = ["schedule.score=spt", f"{OF_SCORE}.tau=0.2", "schedule.solver=mopso", POPULATION]
    schedule = compose(CONFIGS, SCORED, chosen[::order])["schedule"]
    assert (schedule["score_settings"], schedule["solver_settings"]) == ({"tau": 0.2}, {"population": 20})


@each("solver", ["all", "own", *scheduling.names()])
def test_another_solver_drops_the_settings_of_the_one_before(solver):
    before = {"schedule": {"solver": "nsga2", "solver_settings": {"population": 20}}}
    after = overlay(before, {"schedule": {"solver": solver}})["schedule"]
    assert after.get("solver_settings") == ({"population": 20} if solver == "nsga2" else None)


def test_settings_of_the_usual_score_stay_where_a_part_names_it():
    alone = {"schedule": {"score_settings": OF_LNTK}}
    assert overlay(alone, {"schedule": {"score": "lntk"}})["schedule"]["score_settings"] == OF_LNTK
    assert "score_settings" not in overlay(alone, {"schedule": {"score": "snip"}})["schedule"]


EMPTIED = [
    (SCORED, [f"{OF_SCORE}={{}}"], OF_SCORE, {}),
    (SCORED, [f"{OF_SCORE}={{}}", f"{OF_SCORE}.target=logits"], OF_SCORE, {"target": "logits"}),
    (SCORED, [f"{OF_SCORE}.target=logits", f"{OF_SCORE}={{}}"], OF_SCORE, {}),
    ("cases/unequal_widths", ["method.name=vpt", "method.site_settings={}"], "method.site_settings", {}),
    ("fedpia_task1", [f"{OF_HOULSBY}.reduction_factor=8", "method.settings={}"], OF_HOULSBY, {"reduction_factor": 4}),
]


@pytest.mark.parametrize(("job", "overrides", "setting", "left"), EMPTIED)
def test_an_empty_mapping_empties_what_the_job_sets_and_not_what_its_backbone_brings(job, overrides, setting, left):
    assert reduce(dict.__getitem__, setting.split("."), compose(CONFIGS, job, overrides)) == left


@pytest.mark.parametrize(("text", "number"), [("1e-4", 1e-4), ("1.0e-4", 1e-4), ("2E-3", 2e-3)])
def test_numbers_are_read_as_people_write_them(text, number):
    sections = compose(CONFIGS, "fedpia_task1", [f"training.learning_rate={text}"])
    assert sections["training"]["learning_rate"] == number


@pytest.mark.slow
@each("name", adapters.names())
@each("job", ["fedpia_task1", "f3ocus_task1"])
def test_every_adapter_is_one_argument(job, name):
    method = build(MethodSettings, compose(CONFIGS, job, [f"method.name={name}"])["method"], section="method")
    if name == "lora" and method.aggregation == "pia":
        assert (method.pia.support, method.pia.integration) == ("weights", "weight_space")


@pytest.mark.parametrize(
    ("overrides", "settings"),
    [
        ([], {"reduction_factor": 4}),
        (["backbone.name=vilt"], {}),
        (["backbone.name=llava"], {}),
        (["backbone.name=tiny-albef"], {"reduction_factor": 4}),
        (["backbone.name=tiny-vit"], {}),
        (["backbone.name=tiny-vit", "method.name=compacter"], {"reduction_factor": 4}),
        (["backbone.name=vilt", "method.settings.houlsby.reduction_factor=4"], {"reduction_factor": 4}),
        (["method.settings.houlsby.reduction_factor=16"], {"reduction_factor": 16}),
    ],
)
def test_the_widths_of_adapters_change_with_the_backbone_unless_the_job_sets_them(overrides, settings):
    sections = compose(CONFIGS, "fedpia_task1", overrides)
    assert build(MethodSettings, sections["method"], section="method").settings_of("") == settings


@pytest.mark.parametrize(("backbone", "rate"), [("tiny_vilt", 5e-3), ("tiny_vit", 5e-3), ("vilt_b32", 1e-4)])
def test_a_job_that_sets_no_learning_rate_gets_that_of_its_backbone(backbone, rate):
    own = {"data": {"dataset": "manifest"}, "federation": {"sites": ["north", "south"]}, "training": {"rounds": 10}}
    parts = [
        own,
        *(
            part_of(CONFIGS, part)
            for part in (f"backbones/{backbone}", "methods/fedpia_agreement", "deployments/laptop")
        ),
    ]
    assert compose_sections(parts)["training"]["learning_rate"] == rate
    assert compose_sections(parts, ["training.learning_rate=0.5"])["training"]["learning_rate"] == 0.5


def test_what_a_job_changes_in_its_sections_stays_in_that_job():
    compose(CONFIGS, "fedpia_task1")["method"]["settings"]["houlsby"]["reduction_factor"] = 2
    assert compose(CONFIGS, "fedpia_task1")["method"]["settings"]["houlsby"] == {"reduction_factor": 4}


@pytest.mark.parametrize(("name", "pretrained"), backbones.BACKBONES.usable())
def test_what_a_backbone_declares_for_methods_is_allowed(name, pretrained):
    MethodSettings(settings=pretrained.method_settings).check_settings()


@pytest.mark.slow
@each(
    ("override", "message"),
    [
        ("method.name=houlsbi", "houlsbi"),
        ("method.nam=houlsby", "method.nam is not a setting: did you mean 'name'"),
        ("training.rounds=none", "training.rounds is 'none'"),
        ("training.rounds=", "training.rounds is None"),
        ("trainig.rounds=3", "'trainig' is not a section of a job: did you mean 'training'"),
        ("rounds=3", "is not of the form section.name=value"),
        ("federation.quorum=6", "quorum is 6, the job has only 5 sites"),
        ("method.pia={gama: 1}", "method.pia.gama is not a setting"),
        ("data.dataset=phantm", "phantm"),
        ("backbone.name=vilt-huge", "vilt-huge"),
        ("method.site_settings={berlin: {}}", "berlin"),
        ("data.sites={vqa_rad: {}}", "did you mean 'vqa-rad'"),
        ("backbone.sites={vqa_rad: {}}", "did you mean 'vqa-rad'"),
        ("backbone.sites={slake: {nam: vilt}}", "backbone.nam is not a setting: did you mean 'name'"),
        ("backbone.sites={slake: 3}", r"^backbone.sites.slake is 3, it must be an object of settings\.$"),
        ("method.matched_layers=0", "matched_layers is 0, it must be from 1 to 1024"),
        ("method.matched_layers=1000000000000", "matched_layers is 1000000000000, it must be from 1 to 1024"),
        ("data=", "is not of the form section.name=value"),
        ("flare.get_task_timeout=-1", "get_task_timeout is -1"),
        ("method.settings.houlsby=3", "the settings of 'houlsby' are 3"),
        ("resume_from=../../etc", "resume_from is '../../etc', it must be 'latest', the lineage"),
        ("resume_from=a/round-" + "9" * 5000, "5008 characters: use at most 4096"),
        (".".join(["data"] * 5000) + "=1", "5000 levels deep: at most 20"),
        ("data.root=" + "[" * 5000, "nested more than 20 levels deep"),
        ("data.sites={a: &a [1], b: *a}", "aliases"),
        ("data.sites={slake: &a {b: *a}}", "aliases"),
        ("data.root=!!timestamp 2026-01-01", "is of the kind date, which JSON lacks; put it in quotes"),
        ("data.sites={1: {}}", "the name 1 is not text, put it in quotes"),
        ("training.learning_rate=.inf", "inf is not a finite number"),
        ("training.rounds=" + "9" * 5000, "has a value that cannot be used"),
        ("training.rounds=!!python/object:os.system {}", "could not determine a constructor"),
        ("training.validate=!!bool x", "does not fit its value"),
        ("training.rounds=!!int ''", "does not fit its value"),
        ("data.root=!!timestamp soon", "does not fit its value"),
        ("data.sites=!!map [a]", "expected a mapping node, but found sequence"),
        ("data.sites=!!map x", "expected a mapping node, but found scalar"),
    ],
)
def test_a_wrong_setting_is_refused_before_anything_runs(override, message):
    with pytest.raises(FedpeftError, match=message):
        compose(CONFIGS, HALF, [override])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["method.name=full", SEVERAL], "method.name is 'full', which exchanges values that belong to one backbone"),
        (["method.name=dora", MATCHED], "method.name is 'dora', which exchanges values that belong to one backbone"),
        (["method.name=sba", MATCHED], "method.name is 'sba', which exchanges values that belong to one backbone"),
        (["method.name=promptfl", MATCHED], "name='promptfl' trains nothing layer by layer: leave out one of them"),
        (["method.name=classifier", "method.head=federated", MATCHED], "trains nothing layer by layer"),
        (["method.initialization=own", MATCHED], "not with initialization='own': leave out one of them"),
        (["method.pia.share=agreement", MATCHED], "pia.share='agreement' compares whole adapters"),
        (["method.secure_sum=true", "method.aggregation=fedavg", MATCHED], "secure_sum adds up the same tensors"),
        (["schedule.solver=own", "schedule.budget=1", MATCHED], "schedule.solver chooses among layers that all sites"),
    ],
)
def test_settings_that_do_not_go_with_backbones_of_several_depths_are_refused_before_anything_runs(overrides, message):
    with pytest.raises(FedpeftError, match=message):
        compose(CONFIGS, HALF, overrides)


@pytest.mark.parametrize("name", ["full", "classifier", "dora", "promptfl"])
def test_sites_that_exchange_nothing_may_have_any_backbones(name):
    overrides = [f"method.name={name}", "method.aggregation=none", SEVERAL, MATCHED]
    assert compose(CONFIGS, "fedpia_task1", overrides)["method"]["name"] == name


ANSWERS = {  # backbone -> the ways to answer that it has
    "tiny-vilt": ["classification"],
    "vilt": ["classification"],
    "tiny-vit": ["classification"],
    "vit": ["classification"],
    "tiny-albef": ["classification"],
    "albef": ["classification"],
    "tiny-albef-decoder": ["ranking"],
    "albef-decoder": ["ranking"],
    "llava": ["classification", "generation"],
    "blip2": ["classification", "generation"],
    "mmbt-small": ["classification"],
    "mmbt": ["classification"],
    "transformers": ["classification", "generation"],  # the second if the source is a causal language model
}


@each("name", backbones.BACKBONES.own_names())
@each("way", ["classification", "generation", "ranking"])
def test_a_backbone_that_cannot_answer_so_is_refused_before_a_job_is_written(name, way):
    images = ["backbone.image_source=folder"] * backbones.BACKBONES.get(name).image_encoder
    overrides = [f"backbone.name={name}", "backbone.source=folder", *images, f"training.answering={way}"]
    if way in ANSWERS[name]:
        sections = compose(CONFIGS, "f3ocus_task1", overrides)
        assert SiteJob.from_sections(sections, site="slake").training.answering == way
        return
    ways = " or ".join(ANSWERS[name])
    able = ", ".join(one for one in backbones.BACKBONES.own_names() if way in ANSWERS[one])
    sentence = f"^answering is '{way}', and backbone '{name}' answers only by {ways}: .*{able}"
    with pytest.raises(FedpeftError, match=sentence) as caught:
        compose(CONFIGS, "f3ocus_task1", overrides)
    assert caught.value.setting == "training.answering"


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        (["schedule.score=snip"], True),
        (["schedule.score=rgn"], True),
        (["schedule.score=rgn", "schedule.score_settings={norms: layer}"], False),
        (["schedule.score=snip", "schedule.scoring=with_reply"], False),
        (["schedule.score=snip", "method.aggregation=svd"], False),
        (["schedule.score=lntk"], False),
    ],
)
def test_scores_that_are_0_in_every_round_are_refused(changes, refused):
    stacked = ["method.name=lora", "method.aggregation=stack", "schedule.solver=own", "schedule.budget=1"]
    with pytest.raises(FedpeftError, match="is 0 until a LoRA has trained") if refused else nullcontext():
        compose(CONFIGS, "fedpia_task1", [*stacked, *changes])


@pytest.mark.parametrize("setting", ["training.patience=2", "training.keep=best"])
def test_rounds_are_compared_only_where_some_site_has_a_validation_split(setting):
    name, _, value = setting.partition("=")
    with pytest.raises(
        FedpeftError, match=rf"^{name} is '?{value}'?, which .* data\.validation_size is 0 at every site"
    ):
        compose(CONFIGS, "fedpia_task1", [setting, "data.validation_size=0"])
    compose(CONFIGS, "fedpia_task1", [setting, "data.validation_size=0", "data.sites.slake.validation_size=4"])
    compose(CONFIGS, "fedpia_task1", [setting, "data.validation_size=0", "resume_from=latest"])


@pytest.mark.parametrize(("own", "of_all"), [(0, None), (4, 0)])
def test_a_site_that_pools_others_has_their_validation_splits(own, of_all):
    sizes = {"data.validation_size": of_all, "data.sites.slake.validation_size": own}
    pooled = ["federation.sites=[center]", "data.sites={center: {pool: [slake]}, slake: {train_size: 8}}"]
    pooled += [f"{name}={size}" for name, size in sizes.items() if size is not None]
    with pytest.raises(FedpeftError, match="at every site") if own == 0 else nullcontext():
        compose(CONFIGS, "fedpia_task1", [*pooled, "training.keep=best"])


def test_one_site_with_a_backbone_that_answers_otherwise_is_refused():
    other = "backbone.sites={slake: {name: tiny-albef-decoder}}"
    with pytest.raises(FedpeftError, match="'tiny-albef-decoder' answers only by ranking: set"):
        compose(CONFIGS, "fedpia_task1", [other])


USER_ERRORS = [
    ("data.sites=[1]", r"^data.sites is \[1\], it must be an object of settings\.$"),
    ("data.sites={slake: 3}", r"^data.sites.slake is 3, it must be an object of settings\.$"),
    (
        "schedule.site_budgets={slake: x}",
        "^schedule.site_budgets is .*, it must be an object of whole numbers: ",
    ),
    (f"schedule.budget_range=[0, {2**63 - 1}]", r"budget_range is .*, it must be .*, at most 1,000,000"),
    ("schedule.budget_range=[a, b]", "^schedule.budget_range is .*, it must be a list of whole numbers: correct"),
    ("method.pia=3", "^method.pia is 3, it must be an object of settings: correct"),
    ("method.settings={houlsby: {widht: 3}}", "adapter 'houlsby' has no setting 'widht': it has"),
    ("method.site_settings={slake: {layer_widths: 3}}", "layer_widths=3 must map layers to widths"),
    ("method.settings={lora: {r: x}}", r"^adapter 'lora' has r='x', it must be a whole number\.$"),
    ("method.settings={lora: {r: }}", r"^adapter 'lora' has r=None, it must be a whole number\.$"),
    ("method.settings={lora_vpt: {lora: {r: x}}}", r"^adapter 'lora' has r='x', it must be a whole number\.$"),
    ("method.settings={vera: {d_initial: [1]}}", r"^adapter 'vera' has d_initial=\[1\], it must be a number\.$"),
    ("method.settings={full: {a: 1}}", "full has no setting 'a'"),
    (
        "method.settings.lora.r=2",
        r"^method.settings.lora changes nothing in \S+, whose method is houlsby: set method.name=lora as well, "
        r"or change those of houlsby\.$",
    ),
    *(
        (setting, rf"^{name} changes nothing in \S+: set {needed} as well\.$")
        for setting, name, needed in (
            ("schedule.budget=2", "schedule.budget", "schedule.solver"),
            ("training.ditto_lambda=1", "training.ditto_lambda", "training.personalization=ditto"),
            ("training.ala_rate=10", "training.ala_rate", "training.personalization=fedala"),
            ("training.moon_temperature=1", "training.moon_temperature", "training.moon_mu"),
            ("method.server_tau=0.1", "method.server_tau", "method.server_optimizer=adagrad or adam or yogi"),
        )
    ),
    ("federation.sites=[1, 2]", r"^federation.sites is \[1, 2\], it must be a list of texts: correct"),
    (
        "federation.sites=[a.b]",
        r"sites names 'a.b', which cannot be a site's name: use a letter or digit",
    ),
    ("federation.sites=[north east]", r"sites names 'north east', which cannot be a site's name"),
    ("federation.sites=[_north]", r"sites names '_north', which cannot be a site's name: use a letter or digit"),
    ("federation.sites=[[a]]", r"^federation.sites is \[\['a'\]\], it must be a list of texts: correct"),
]


@pytest.mark.parametrize(("override", "sentence"), USER_ERRORS, ids=[row[0] for row in USER_ERRORS])
def test_a_wrong_type_is_one_sentence_and_a_failure(override, sentence, capsys, tmp_path):
    command = ["jobs", HALF, "--configs", str(CONFIGS), "--out", str(tmp_path), "--set", override]
    assert main(command) == 1
    assert re.search(sentence, capsys.readouterr().err.removeprefix("fedpeft: ").strip())


WRONG_TYPES = [None, True, -1, 1.5, "x", [], [1], [[1]], ["slake", 1], {}, {"slake": 3}, {"slake": "x"}]
WRONG_TYPES += [{"slake": None}, {"slake": [1]}, {"houlsby": {"widht": 3}}, {"houlsby": {"layers": 3}}, 10**30]


@pytest.mark.slow
@each("setting", sorted(setting_names()))
def test_no_value_of_a_setting_ends_in_anything_but_a_sentence(setting):
    composed = {job: compose(CONFIGS, job) for job in ("fedpia_task1", "f3ocus_task1")}
    *path, last = setting.split(".")
    for job, value in product(composed, WRONG_TYPES):
        sections = deepcopy(composed[job])
        section = reduce(lambda inner, name: inner.setdefault(name, {}), path, sections)
        section[last] = value
        sentence = _refusal(sections)
        assert sentence.endswith(".") or not sentence
        assert not re.search("not supported|has no attribute|unhashable|collections|<class", sentence)


def _refusal(sections):
    try:
        check_sections(sections)
    except FedpeftError as error:
        return str(error)
    return ""


def test_an_unknown_job_is_refused():
    with pytest.raises(FedpeftError, match="did you mean 'fedpia_task1'"):
        compose(CONFIGS, "fedpia_taks1")


def test_seeding_keeps_what_a_workspace_already_says(tmp_path):
    file = tmp_path / "local" / "resources.json"
    file.parent.mkdir()
    file.write_text(json.dumps({"class_allow_list": ["mine.Class"], "other": 1}))
    seed(tmp_path)
    seeded = json.loads(file.read_text())
    assert seeded["class_allow_list"] == ["mine.Class", *COMPONENTS]
    assert seeded["other"] == 1


def test_numbers_may_be_written_as_people_write_them():
    assert compose(CONFIGS, "fedpia_task1", ["training.learning_rate=1e-4"])["training"]["learning_rate"] == 1e-4


def test_a_job_without_data_is_refused():
    with pytest.raises(FedpeftError, match="data is None"):
        site_data(None, "slake")


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["method.name=feddat_houlsby", "method.settings.houlsby.reduction_factor=8"], ""),
        (["method.name=lora_vpt", "method.settings={lora_vpt: {lora: {r: 2}}}"], ""),
        (["method.name=lora_vpt", "method.settings.lora.r=2"], r": write method\.settings\.lora_vpt\.lora\.$"),
        (["method.name=dora", "method.settings.lora.r=2"], "set method.name=lora as well, or change those of dora"),
        (["schedule.budget=1"], "schedule.budget changes nothing in fedpia_task1: set schedule.solver as well"),
        ([*SOLVED, "schedule.solver=nsga2", "schedule.score=snip", "schedule.every=2"], ""),
        ([*SOLVED, "schedule.solver=drawn", "schedule.score=snip"], "score changes .*'drawn' scores no layers"),
        ([*SOLVED, "schedule.solver=drawn", "schedule.every=2"], "every changes .*'drawn' scores no layers"),
        ([*SOLVED, "schedule.solver=drawn", "schedule.every=2", "resume_from=latest"], ""),
        ([*SOLVED, "schedule.solver=own", "schedule.weight_diversity=2"], "'own' has no front to choose from"),
        (["training.checkpointing=true"], ""),
        ([*HEAD, "training.checkpointing=true"], "method 'classifier only' computes no gradients in the backbone"),
        ([*HEAD, *MMBT_TRAINED, "training.checkpointing=true"], ""),
        ([*HEAD, *MMBT_AT_ONE, "training.checkpointing=true"], ""),
        (["backbone.image_grid=4"], "backbone tiny-vilt has no image encoder of its own"),
        (["backbone.name=mmbt-small", "backbone.image_grid=4"], ""),
        (["data.split=image_disjoint"], "phantom is computed and split by data.train_size"),
        (["data.dataset=vqa_rad", "data.split=image_disjoint"], ""),
        (["data.validation_fraction=0.3"], "data.validation_fraction changes nothing .*: leave it out, phantom is"),
        (["data.sites={slake: {test_fraction: 0.3}}"], r"data\.sites\.slake\.test_fraction changes nothing in fedpia_"),
        (["data.sites.slake.split=image_disjoint", "resume_from=latest"], ""),
        (["data.sites={slake: {dataset: vqa_rad, split: image_disjoint}}"], ""),
        (["data.sites={slake: {dataset: vqa_rad}}", "data.split=image_disjoint"], ""),
        (["data.sites={slake: {train_size: 100}}"], ""),
        (["data.unreadable=0.1"], "data.unreadable changes nothing .*: leave it out, phantom is computed and has no"),
        (["data.alpha=0.1"], "data.alpha changes .*: leave it out, phantom does not read it without .*=dirichlet"),
        (
            [
                "data.alpha=0.1",
                "data.partition=dirichlet",
                "data.parts=5",
                "data.dataset=phantom_skin",
                "federation.sites=[c-1]",
            ],
            "",
        ),
        (
            [*SOLVED, "schedule.solver=exact", "schedule.memory_margin=0.2"],
            "memory_margin changes .*: leave it out, the budget of every site",
        ),
        (["method.pia.share=0.5", "schedule.solver=exact", "schedule.memory_margin=0.2"], ""),
        ([*POOLED, "data.root=/data", "data.unreadable=0.05"], ""),
        ([*POOLED, "data.sites.center.unreadable=0.05"], ""),
        ([*BLIP2, "training.answering=generation", "training.head=mlp"], ""),
        ([HEAD[0], "method.head=federated", "training.head_learning_rate=0.5", "training.learning_rate=0.5"], ""),
        (["method.pia.client=false", "method.pia.accept=false"], ""),
        (["data.root=/nowhere"], "data.root changes nothing .*: leave it out, phantom is computed and has no files"),
        ([*MOMENTUM, "method.server_decay=0.2"], "set method.server_optimizer=adam or yogi as well"),
        ([*MOMENTUM, "method.server_decay=0.2", "resume_from=latest"], ""),
        ([*MOMENTUM, "method.server_momentum=0.2"], ""),
        (["training.candidates=3"], "training.answering='classification' ranks no answers"),
        ([*RANKED, "training.candidates=3"], ""),
        ([*RANKED, "training.head=mlp"], "training.head changes .*: leave it out, training.answering='ranking' has no"),
        ([*RANKED, "training.head_learning_rate=0.5"], "training.answering='ranking' has no head"),
        ([*HEAD, "training.learning_rate=0.5"], ""),
        ([*HEAD, "training.head_learning_rate=0.5", "training.learning_rate=0.5"], "learning_rate changes .* no gradi"),
        (["training.optimizer=sgd", "training.optimizer_state=reset"], "set training.optimizer=adamw as well"),
        (["method.aggregation=fedavg", "method.pia.gamma=5"], "method.pia.gamma changes .*='fedavg' aligns nothing"),
        (["method.aggregation=fedavg", "method.pia.weighting=uniform"], ""),
        (["method.pia.gamma=5"], ""),
        (["method.pia.passes=5"], "set method.pia.reference=fixed_point as well"),
        (["method.pia={server: false, gamma: 5}"], "set method.pia.server=true as well"),
        (["method.pia.client=false", "method.pia.share=0.7"], "set method.pia.client=true as well"),
        (["method.pia={integration: weight_space, upload: local}"], "set method.pia.integration=two_branches as well"),
        (["method.pia.solver=sinkhorn", "method.pia.regularization=0.1"], ""),
        ([*MEDIAN, "method.robust.max_share=1"], "max_share .*: set method.robust.average=mean as well"),
        (["method.robust.max_share=0.4"], ""),
        (
            ["method.pia.weighting=uniform", "method.pia.reference=fixed_point", "method.robust.max_share=0.4"],
            "max_share changes .*: leave it out, method.pia.weighting='uniform' weighs all sites alike",
        ),
        (
            ["method.pia.weighting=uniform", "method.pia.solver=identity", "method.robust.max_share=0.4"],
            "max_share changes .*: leave it out, method.pia.weighting='uniform' weighs all sites alike",
        ),
        (["method.pia.weighting=uniform", "method.pia.reference=largest", "method.robust.max_share=0.4"], ""),
        (
            ["method.aggregation=fedavg", "method.pia.weighting=uniform", "method.robust.max_share=0.4"],
            "max_share changes .*: leave it out, method.pia.weighting='uniform' weighs all sites alike",
        ),
        ([*MEDIAN, "method.pia.gamma=5"], "leave it out, method.robust.average='median' weighs all sites"),
        (
            [*BUDGETED, "federation.sites=[slake]"],
            "budget changes .*: leave it out, .*site_budgets has a budget",
        ),
        (BUDGETED, ""),
        (["method.robust.attackers=2"], "set method.robust.average=trimmed_mean or krum or multi_krum as well"),
        (["method.aggregation=none", "method.robust.average=median"], "leave it out, the sites exchange nothing"),
        (["method.aggregation=none", "method.matched_layers=40"], "leave it out, the sites exchange nothing"),
        ([*SOLVED, "schedule.solver=exact", "schedule.budget_range=[1, 2]"], r"set schedule.budget_range=\[\] as well"),
        (
            ["backbone.sites={slake: {image_grid: 5}}"],
            r"backbone\.sites\.slake\.image_grid changes .*: leave it out, back",
        ),
        (["backbone.sites={slake: {name: tiny-vilt, text_length: 5}}"], ""),
        (["backbone.name=tiny-vit", "backbone.text_length=5"], "backbone tiny-vit reads no text"),
    ],
    ids=" ".join,
)
def test_settings_are_used_where_method_schedule_backbone_and_data_read_them(overrides, sentence):
    sections = compose(CONFIGS, "fedpia_task1", overrides)
    with pytest.raises(FedpeftError, match=sentence) if sentence else nullcontext():
        check_used(overrides, sections, job="fedpia_task1")


def test_nothing_is_written_where_one_of_several_jobs_does_not_use_a_setting(tmp_path, capsys):
    jobs = ["jobs", "fedpia_task1", "f3ocus_task1", "--set", "method.settings.houlsby.reduction_factor=8"]
    assert main([*jobs, "--out", str(tmp_path)]) == 1
    assert "changes nothing in f3ocus_task1, whose method is pfeiffer" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("federation.sites=[server, slake]", "server"),
        ("data.seed=9223372036854775808", "seed=9223372036854775808 must be a whole number from 0 to 2^63 - 1"),
    ],
)
def test_a_job_that_nobody_would_admit_is_not_written_over_the_one_before(override, sentence, tmp_path, capsys):
    command = ["jobs", "fedpia_task1", "--out", str(tmp_path)]
    assert main(command) == 0
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    assert main([*command, "--set", override]) == 1
    assert sentence in capsys.readouterr().err
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before


def test_a_configs_folder_without_a_list_of_jobs_knows_those_of_the_package(tmp_path):
    assert known_jobs(tmp_path) == recipes(PACKAGED)
    (tmp_path / "jobs.yml").write_text("ours: [tasks/phantom]\n")
    assert known_jobs(tmp_path) == recipes(PACKAGED) | {"ours": ["tasks/phantom"]}


def test_a_backbone_without_a_name_is_the_default_one():
    section = {"image_size": 48, "sites": {"slake": {"name": "tiny-vit"}}}
    assert site_backbone(section, "vqa-rad") == {"name": "tiny-vilt", "image_size": 48}
    assert site_backbone(section, "slake")["name"] == "tiny-vit"
