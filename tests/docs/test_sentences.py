# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The table of faults in messages.md: each is brought about, and what the code says is what the table says."""

import re
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.signal import Signal
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

import fedpeft
from fedpeft import data
from fedpeft.answering.training_settings import TrainingSettings
from fedpeft.backbones.registry import TINY_FOLDER
from fedpeft.core.errors import FedpeftError
from fedpeft.core.locks import held
from fedpeft.core.settings import build
from fedpeft.data.images import open_image
from fedpeft.flare import controller, executor
from fedpeft.flare.messages import from_model, to_model
from fedpeft.job.composing import compose, write_job
from fedpeft.job.folder import check_sites
from fedpeft.methods.settings import MethodSettings
from fedpeft.protocol.reply_contract import check_introduction, check_train_reply
from fedpeft.protocol.types import HELLO, METRICS, TRAIN, Hello, Introduction, TrainOrder, TrainReply
from fedpeft.run.simulate import simulate
from fedpeft.server import checkpoint, first_adapter, handshake, rounds
from fedpeft.site.connection import Failure, WorkerProcess
from fedpeft.site.learner import Learner
from fedpeft.site.orders import accept

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| ([^|]+) \| `(.+)` \|$", re.MULTILINE)
ROWS = dict(ROW.findall((Path(__file__).parent / "messages.md").read_text()))
SCHEMA = {"layer.0.output.down.bias": [2]}
WEIGHT = {"layer.0.output.down.weight": [2, 2]}
METHOD = MethodSettings()
CASES: dict[str, Callable] = {}


def case(what: str) -> Callable:
    """Name a function after the row whose sentence it raises or returns."""
    return lambda function: CASES.setdefault(what, function)


def composed(*overrides):
    return compose(ROOT / "app_configs", "fedpia_task1", overrides)


def introduction(**changes):
    return Introduction(**{"version": fedpeft.__version__, "schema": SCHEMA, "samples": {"train": 5}, **changes})


def agreement(**changes):
    sites = {"slake": introduction(), "chest": introduction(), "north": introduction(**changes)}
    _, problems = handshake.agree(sites, version=fedpeft.__version__, method=METHOD)
    return problems["north"]


ORDER = TrainOrder(lineage="job-1", round=2, base=0, version=0, layers=None, scored=False, state={})
EXPECTED = {"site": "north", "order": ORDER, "schema": SCHEMA, "dtype": "float32", "samples": 5}


def reply(state):
    good = {key: torch.zeros(shape) for key, shape in SCHEMA.items()}
    sent = TrainReply(
        round=2, samples=5, metrics=dict.fromkeys(METRICS), scores=[], seconds=1.0, problem="", state={**good, **state}
    )
    check_train_reply(sent, **EXPECTED)


def manifest(folder, *rows):
    (folder / "scan.png").write_bytes(b"no image")
    (folder / "manifest.csv").write_text("\n".join(["image,question,answer,split", *rows]) + "\n")
    return data.load(data.DataSettings(dataset="manifest", root=folder, site="north"))


def answered(here, task, order, sections):
    """What the executor of site north answers to an order."""
    here.monkeypatch.setattr(executor, "run_folder", lambda fl_ctx: here.folder)
    here.monkeypatch.setattr(executor, "policy_of", lambda fl_ctx: None)
    here.monkeypatch.setenv("FEDPEFT_STATE", str(here.folder))
    context, signal = FLContext(), Signal()
    context.set_prop(ReservedKey.IDENTITY_NAME, "north", private=True, sticky=False)
    chosen = {name: sections[name] for name in ("backbone", "method", "training", "data", "schedule")}
    site = executor.SiteExecutor(**chosen)
    shareable = FLModelUtils.to_shareable(to_model(order, round=2))
    context.set_prop(FLContextKey.TASK_NAME, task, private=True, sticky=False)
    answer = site.execute(task, shareable, context, signal)
    site.handle_event(EventType.END_RUN, context)
    return FLModelUtils.from_shareable(answer)


@case("no such job")
def no_such_job(here):
    simulate(here.folder / "nothing", workspace=here.folder, threads=1)


@case("more threads than sites")
def more_threads_than_sites(here):
    simulate(ROOT / "jobs" / "fedpia_task1", workspace=here.folder, threads=9)


@case("unknown adapter")
def unknown_adapter(here):
    composed("method.name=houlsbi")


@case("a method that does not fit, in the simulator")
def a_method_that_does_not_fit(here):
    check_sites(composed("method.name=compacter", "method.settings={compacter: {reduction_factor: 32}}"), ["slake"])


@case("no data folder, in the simulator")
def no_data_folder_in_the_simulator(here):
    here.monkeypatch.delenv("FEDPEFT_DATA", raising=False)
    check_sites(compose(ROOT / "app_configs", "vqa_rad"), ["head"])


@case("a relative path, in the simulator")
def a_relative_path_in_the_simulator(here):
    check_sites(compose(ROOT / "app_configs", "vqa_rad", ["data.root=scans"]), ["head"])


@case("unknown setting")
def unknown_setting(here):
    composed("method.nam=houlsby")


@case("a value out of range")
def a_value_out_of_range(here):
    composed("federation.quorum=6")


@case("a checkpoint that is no plain name")
def a_checkpoint_that_is_no_plain_name(here):
    composed("resume_from=../../etc")


@case("a workspace in use")
def a_workspace_in_use(here):
    with held(here.folder / "ws"):
        simulate(ROOT / "jobs" / "fedpia_task1", workspace=here.folder / "ws", threads=1)


@case("a folder with something of yours in it")
def a_folder_with_something_of_yours_in_it(here):
    (here.folder / "ws" / "scans").mkdir(parents=True)
    simulate(ROOT / "jobs" / "fedpia_task1", workspace=here.folder / "ws", threads=1)


@case("a folder that cannot be made")
def a_folder_that_cannot_be_made(here):
    (here.folder / "file").touch()
    simulate(ROOT / "jobs" / "fedpia_task1", workspace=here.folder / "file" / "ws", threads=1)


@case("nothing to resume")
def nothing_to_resume(here):
    write_job(here.folder / "job", "small", here.sections("resume_from=latest"))
    simulate(here.folder / "job", workspace=here.folder / "ws", threads=1)


@case("the job of another lead")
def the_job_of_another_lead(here):
    facts = {"job": "small", "lineage": "small-1", "round": 1, "state": {}, "scores": {}, "settings": {}, "history": {}}
    checkpoint.save(here.folder / "small-1", checkpoint.Checkpoint(**facts, submitter="lead@north.org (north)"), keep=1)
    checkpoint.find(here.folder, "small-1", job="small", submitter="lead@south.org (south)")


@case("YAML that explodes")
def yaml_that_explodes(here):
    composed("data.sites={slake: &a {b: *a}}")


@case("a brace in a text")
def a_brace_in_a_text(here):
    here.sections('method.name="{$HOME}"')


@case("null")
def a_setting_of_null(here):
    build(TrainingSettings, {"rounds": None}, section="training")


@case("unknown setting of an adapter")
def unknown_setting_of_an_adapter(here):
    sections = here.sections("method.settings.houlsby.reduction=3")
    Learner.from_sections(sections, site="slake", folder=here.folder)


@case("no data folder, at the site")
def no_data_folder_at_the_site(here):
    here.monkeypatch.delenv("FEDPEFT_DATA", raising=False)
    data.load(data.DataSettings(dataset="vqa_rad"))


@case("an image is missing, at the site")
def an_image_is_missing_at_the_site(here):
    manifest(here.folder, "none.png,What?,yes,train")


@case("an empty split, at the site")
def an_empty_split_at_the_site(here):
    manifest(here.folder, "scan.png,What?,yes,train", "scan.png,Where?,yes,validation")


@case("the same three, at the server")
def the_same_three_at_the_server(here):
    here.monkeypatch.delenv("FEDPEFT_DATA", raising=False)
    sections = here.sections()
    hello = Hello(version=fedpeft.__version__, lineage="job-1")
    answer = answered(here, HELLO, hello, {**sections, "data": {"dataset": "vqa_rad", "site": "head"}})
    check_introduction(from_model(Introduction, answer), site="north", initial=False, max_samples=100)


@case("no weights for the backbone")
def no_weights_for_the_backbone(here):
    sections = here.sections(f"backbone.source={here.folder / 'nowhere'}")
    Learner.from_sections(sections, site="slake", folder=here.folder)


@case("weights that are a pickle, at the site")
def weights_that_are_a_pickle_at_the_site(here):
    shutil.copytree(TINY_FOLDER, here.folder / "backbone")
    (here.folder / "backbone" / "model.safetensors").rename(here.folder / "backbone" / "pytorch_model.bin")
    Learner.from_sections(
        here.sections(f"backbone.source={here.folder / 'backbone'}"), site="slake", folder=here.folder
    )


def first_adapter_of(digest):
    announced, sender = introduction(schema=WEIGHT), first_adapter.Sender("north", digest, {})
    state = {key: torch.full(shape, 0.3) for key, shape in WEIGHT.items()}
    first_adapter.check(state, sender, announced, METHOD, answering="classification")


@case("another version")
def another_version(here):
    return agreement(version="0.0.1")


@case("another kind of adapter")
def another_kind_of_adapter(here):
    return agreement(schema={"layer.0.query.A": [4, 8]})


@case("another width, not declared")
def another_width_not_declared(here):
    return agreement(schema={"layer.0.output.down.bias": [3]})


@case("another number of layers, not declared")
def another_number_of_layers_not_declared(here):
    return agreement(schema={f"layer.{layer}.output.down.bias": [2] for layer in range(2)})


@case("another first adapter than that of most sites, which all get")
def another_first_adapter_than_that_of_most_sites(here):
    first_adapter_of("0" * 64)


@case("a first adapter that the method does not begin with")
def a_first_adapter_that_the_method_does_not_begin_with(here):
    first_adapter_of("")


@case("no answer")
def no_answer(here):
    return controller.SILENCE[HELLO].format(site="north", timeout=300)


@case("a broken image, at the site")
def a_broken_image_at_the_site(here):
    (here.folder / "broken.jpg").write_bytes(b"\xff\xd8\xff")
    open_image(here.folder / "broken.jpg")


@case("the loss diverges")
def the_loss_diverges(here):
    sections = here.sections("training.learning_rate=1.0e+30", "training.local_epochs=20")
    Learner.from_sections(sections, site="slake", folder=here.folder).train_round(1, {})


@case("NaN or infinity in a reply")
def nan_or_infinity_in_a_reply(here):
    reply({"layer.0.output.down.bias": torch.tensor([0.0, float("nan")])})


@case("a tensor of another shape")
def a_tensor_of_another_shape(here):
    reply({"layer.0.output.down.bias": torch.zeros(3)})


@case("a tensor too many")
def a_tensor_too_many(here):
    reply({"head.weight": torch.zeros(3)})


def trained(here):
    accept(introduction(), here.folder)
    reply = from_model(TrainReply, answered(here, TRAIN, ORDER, here.sections()))
    check_train_reply(reply, **EXPECTED)


@case("a site's training process dies, twice")
def a_sites_training_process_dies_twice(here):
    here.monkeypatch.setattr(WorkerProcess, "send", lambda process, *_: process.kill())
    trained(here)


@case("any other error, twice")
def any_other_error_twice(here):
    failure = asdict(Failure.of(RuntimeError("a question")))
    here.monkeypatch.setattr(WorkerProcess, "receive", lambda *_: ({"failure": failure}, {}))
    trained(here)


@case("a site's process is gone")
def a_sites_process_is_gone(here):
    return controller.SILENCE[TRAIN].format(site="north", timeout=1800, round=2)


@case("too few valid replies")
def too_few_valid_replies(here):
    rounds.check_enough("round 2", ["slake"], 2, {"north": "the reason."})


def test_every_row_has_a_case():
    assert list(ROWS) == list(CASES)


@pytest.mark.slow
@pytest.mark.parametrize("what", ROWS)
def test_the_table_says_what_the_code_says(what, sections, tmp_path, monkeypatch):
    here = SimpleNamespace(sections=sections, folder=tmp_path, monkeypatch=monkeypatch)
    try:
        said = CASES[what](here)
    except FedpeftError as error:
        said = str(error)
    wanted = ".+".join(re.escape(part) for part in ROWS[what].split("…"))
    assert re.fullmatch(wanted, said), said
