# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Each row of the table of docs/own_method.md carried out: one file and one entry point, nothing of fedpeft edited."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TABLE = (ROOT / "docs" / "own_method.md").read_text()
GROUPS = set(re.findall(r"`(fedpeft\.[a-z]+)`", TABLE))
ROWS = {
    "fedpeft.methods": (
        """
from fedpeft.core.keys import BACKBONE, belongs
from fedpeft.methods import TuningMethod
from fedpeft.methods.trainable import Trainable

class Norms(Trainable):
    def __init__(self, model):
        self.named = {f"{BACKBONE}{n}": p for n, p in model.named_parameters() if "layernorm_before" in n}

    def parameters(self):
        return self.named

    def train_only(self, layers):
        for key, parameter in self.named.items():
            parameter.requires_grad_(belongs(key, layers))

class Tuning:
    def prepare(self, backbone, settings, *, seed):
        backbone.requires_grad_(False)
        return Norms(backbone.model)

TUNING = Tuning()
MINE = TuningMethod(home="mine:TUNING", label="LayerNorm", source="a test")
""",
        """
results = federation("method.name=mine", "method.aggregation=fedavg", "schedule.solver=own", "schedule.budget=1")
assert {key.split(".")[-2] for key in results[-1].state} == {"layernorm_before"}
""",
    ),
    "fedpeft.backbones": (
        """
from fedpeft.backbones import Pretrained
from fedpeft.backbones.images import SquareImages
from fedpeft.backbones.vilt import build, skeleton

def mine(settings):
    return build(settings, images=lambda size, patch: SquareImages(size))

MINE = Pretrained(build=mine, default_source="mine", skeleton=skeleton)
""",
        """
assert federation("backbone.name=mine")[-1].state
""",
    ),
    "fedpeft.scores": (
        """
import torch

def MINE(task):
    return torch.arange(1, len(task.layers) + 1)
""",
        """
first, *_ = federation("schedule.solver=own", "schedule.score=mine", "schedule.budget=1")
assert set(map(tuple, first.assignment.layers.values())) == {(1,)}
""",
    ),
    "fedpeft.solvers": (
        """
from dataclasses import dataclass
from fedpeft.scheduling.front import Archive, Front
from fedpeft.scheduling.problem import balanced

@dataclass(frozen=True, kw_only=True)
class Settings:
    turn: int = 0

def MINE(problem, rng, settings: Settings) -> Front:
    archive = Archive(problem)
    archive.evaluate(balanced(problem)[None])
    return archive.front()
""",
        """
first, *_ = federation("schedule.solver=mine", "schedule.solver_settings.turn=2", "schedule.budget=1")
assert sorted(first.assignment.layers.values()) == [[0], [1]]
""",
    ),
    "fedpeft.datasets": (
        """
import numpy as np
from fedpeft.data import DataSet, Example, SiteData

def load(settings):
    image = np.zeros((16, 16, 3), dtype=np.uint8)
    rows = tuple(
        Example(image=image, question="Dark?", answer=("no", "yes")[n % 2], closed=True, image_id=str(n))
        for n in range(8)
    )
    return SiteData(site=settings.site, train=rows, validation=rows[:2], test=rows, source="a test")

MINE = DataSet(load=load)
""",
        """
assert federation("data.dataset=mine", drop="data")[-1].state
""",
    ),
    "fedpeft.tasks": (
        """
MINE = {"training": {"local_epochs": 7}}
""",
        """
from fedpeft.job.composing import compose
import pathlib, shutil, tempfile
configs = pathlib.Path(shutil.copytree(ROOT / "app_configs", tempfile.mkdtemp() + "/configs"))
with (configs / "jobs.yml").open("a") as recipes:
    recipes.write("own: [tasks/phantom, tasks/mine, backbones/tiny_vilt, methods/fedpia, deployments/laptop]\\n")
assert compose(configs, "own")["training"]["local_epochs"] == 7
""",
    ),
    "fedpeft.answering": (
        """
from fedpeft.answering import WayToAnswer
from fedpeft.answering.classification import Classification, build

class Careful(Classification):
    def loss(self, logits, target, *, reduction="mean"):
        return 2 * super().loss(logits, target, reduction=reduction)

def careful(*arguments):
    classification = build(*arguments)
    return Careful(classification.backbone, classification.head, classification.vocabulary)

MINE = WayToAnswer(home=careful)
""",
        """
own, default = (federation(f"training.answering={name}")[0].updates["a"].metrics for name in ("mine", "classification"))
assert own["loss_first"] > 1.5 * default["loss_first"]
""",
    ),
    "fedpeft.checks": (
        """
from fedpeft.doctor.context import passed

def MINE(context):
    yield passed("all is well.")
""",
        """
from fedpeft.doctor import examine, open_context
assert ("mine", "all is well.") in [(name, finding.sentence) for name, finding in examine(open_context())]
""",
    ),
    "fedpeft.trackers": (
        """
from fedpeft.job.federation import Tracker
from nvflare.apis.dxo import from_shareable
from nvflare.app_common.widgets.streaming import AnalyticsReceiver

class Lines(AnalyticsReceiver):
    def __init__(self, file):
        super().__init__()
        self.file = file

    def initialize(self, fl_ctx):
        self.file.touch()

    def save(self, fl_ctx, shareable, record_origin):
        data = from_shareable(shareable).data
        self.file.write_text(f"{data['global_step']} {data['track_value']['accuracy/overall/a']}")

    def finalize(self, fl_ctx):
        pass

MINE = Tracker(
    title="Mine", library="json", extra="mine", check=lambda: None, receiver=lambda job, folder: Lines(folder / job)
)
""",
        """
from types import SimpleNamespace
from fedpeft.job.federation import FederationSettings
from fedpeft.flare.tracking import start_tracking
folder = pathlib.Path(tempfile.mkdtemp())
name = FederationSettings(sites=("a",), tracking="mine").tracking
tracking = start_tracking(name, "job", folder, SimpleNamespace(get_engine=lambda: None, get_job_id=lambda: "1"))
tracking.update([{"round": 1, "sites": {"a": {"overall": 0.5}}}], {})
assert (folder / "job").read_text() == "1 0.5"
""",
    ),
}
COMMON = """
import pathlib, sys, tempfile
ROOT, SOURCE = pathlib.Path(sys.argv[1]), sys.argv[2]

def federation(*overrides, drop=""):
    from fedpeft.site.learner import Learner
    from fedpeft.federate import federate
    from fedpeft.job.composing import compose
    small = [f"backbone.source={SOURCE}", "training.rounds=2", "method.probe_samples=8", "federation.sites=[a, b]"]
    small += ["method.pia.share=0.5", "method.pia.accept=false"]
    sizes = [f"data.{split}_size=8" for split in ("train", "validation", "test")]
    chosen = compose(ROOT / "app_configs", "fedpia_task1", [*small, *([] if drop else sizes), *overrides])
    folder = pathlib.Path(tempfile.mkdtemp())
    return list(federate({s: Learner.from_sections(chosen, site=s, folder=folder / s) for s in "ab"}))
"""


def test_every_group_of_the_table_is_tried():
    assert set(ROWS) == GROUPS


@pytest.mark.slow
@pytest.mark.parametrize("group", ROWS)
def test_one_file_and_one_entry_point_are_enough(fresh_processes, group, tmp_path, tiny_source):
    written, used = ROWS[group]
    (tmp_path / "mine.py").write_text(written)
    information = tmp_path / "mine-1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1\n")
    (information / "entry_points.txt").write_text(f"[{group}]\nmine = mine:MINE\n")
    assert not fresh_processes.run(COMMON + used, str(ROOT), tiny_source, path=[str(tmp_path)])
