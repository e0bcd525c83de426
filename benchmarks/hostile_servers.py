# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A lead or a server that asks a site of a consortium for too much, against the real executor in this process.

The site has a start-up kit and its site policy with the defaults; no training process answers for it.
"""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from nvflare.apis.fl_constant import FLContextKey, ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from fedpeft.core.workspace import PROBLEM
from fedpeft.flare.executor import SiteExecutor
from fedpeft.flare.messages import FIELDS, to_model
from fedpeft.protocol.fields import sentence
from fedpeft.protocol.types import HELLO, SCORE, TRAIN, Hello, Introduction, ScoreOrder, TrainOrder
from fedpeft.site.orders import REPEATS, accept, note_order

SECRET = "/home/lead/patient-7"
PATTERN = "(.+)+[.]0"
ROUNDS = 5
SECTIONS = {"backbone": {}, "method": {}, "training": {"rounds": ROUNDS}, "data": {}, "schedule": {}}
OWN, VICTIM = "small-1", "victim-1"
GREETING = Hello(version="1", lineage=OWN)
TRAINING = TrainOrder(lineage=OWN, round=1, base=0, version=0, layers=None, scored=False, state={})
SCORING = ScoreOrder(lineage=OWN, round=1, base=0, version=0, state={})
KEY = "layer.0.output.down.weight"
SCHEMA = {KEY: [2, 3]}
Row = tuple[str, str, str]

SETTINGS: dict[str, dict[str, Any]] = {
    "data.exclude, all images but one": {"data": {"exclude": [SECRET]}},
    "data.root, a folder of the lead's choice": {"data": {"root": SECRET}},
    "data.site, the data of another": {"data": {"site": SECRET}},
    "data.test_fraction=0.8": {"data": {"dataset": "manifest", "test_fraction": 0.8}},
    "data.seed, another cut of the data": {"data": {"dataset": "manifest", "seed": 1}},
    "data.dataset, one that there is not": {"data": {"dataset": SECRET}},
    "data.partition, a tenth of the data": {"data": {"dataset": "nih_cxr14", "partition": "iid", "parts": 10}},
    "data.columns, another column as the answer": {"data": {"dataset": "hugging_face", "columns": {"answer": SECRET}}},
    "data.window, other gray values": {"data": {"dataset": "manifest", "window": {"center": 40, "width": 400}}},
    "data.unreadable=0.9, most images skipped": {"data": {"dataset": "manifest", "unreadable": 0.9}},
    "backbone.source, a folder of the lead's choice": {"backbone": {"source": SECRET}},
    "backbone.image_size=10**6": {"backbone": {"image_size": 10**6}},
    "training.rounds=10**4": {"training": {"rounds": 10**4}},
    "training.batch_size=1": {"training": {"batch_size": 1}},
    "training.learning_rate=1": {"training": {"learning_rate": 1.0}},
    "training.threads=10**4": {"training": {"threads": 10**4}},
    "training.features_mib=10**6": {"training": {"features_mib": 10**6}},
    "training.compile, the site's compiler": {"training": {"compile": True}},
    "schedule.score_samples=1": {"schedule": {"solver": "own", "score_samples": 1}},
    "method.probe_samples=10**6": {"method": {"probe_samples": 10**6}},
    "method.name=full, the whole backbone": {"method": {"name": "full", "aggregation": "fedavg"}},
    "a pattern in target_modules": {"method": {"settings": {"houlsby": {"target_modules": PATTERN}}}},
    "a width of 10**9": {"method": {"settings": {"houlsby": {"layer_widths": {"0": 10**9}}}}},
    "data.train_size=10**9, of drawn data": {"data": {"dataset": "phantom", "train_size": 10**9}},
    "an unknown setting of the adapter": {"method": {"settings": {SECRET: 1}}},
    "no section training at all": {"training": None},
}
SINGLE: dict[str, dict[str, Any]] = {
    "backbone.sites, short questions at one site": {"backbone": {"sites": {"south": {"text_length": 3}}}},
    "data.sites, known data at the others": {"data": {"sites": {"south": {"dataset": "phantom"}}}},
    "method.site_settings, another rank at one site": {
        "method": {"name": "lora", "aggregation": "svd", "secure_sum": False, "site_settings": {"south": {"r": 2}}}
    },
    "schedule.joins, one site later": {"schedule": {"joins": {"south": 2}}},
    "schedule.site_budgets, one site by itself": {"schedule": {"site_budgets": {"south": 1}}},
}
ORDERS: dict[str, tuple[list[Any], str, Any]] = {  # what the site has done before, then task and order
    "the state of another job in the handshake": ([], HELLO, replace(GREETING, lineage=VICTIM)),
    "the state of another job in a round": ([GREETING], TRAIN, replace(TRAINING, lineage=VICTIM)),
    "a path as the name of the state": ([], HELLO, replace(GREETING, lineage="../../local")),
    "to go on after round -1": ([], HELLO, replace(GREETING, finished=-1)),
    "to go on after round 10**6": ([], HELLO, replace(GREETING, finished=10**6)),
    "to begin anew in round 3": ([GREETING, replace(TRAINING, round=3)], HELLO, GREETING),
    "round 0": ([GREETING], TRAIN, replace(TRAINING, round=0)),
    "round 10**12": ([GREETING], TRAIN, replace(TRAINING, round=10**12)),
    "round 1 after round 3": ([GREETING, replace(TRAINING, round=3)], TRAIN, TRAINING),
    "round 1 for the 11th time": ([GREETING, *[TRAINING] * REPEATS], TRAIN, TRAINING),
    "layer scores, in a job without": ([GREETING], SCORE, SCORING),
    "layer scores with the reply, in a job without": ([GREETING], TRAIN, replace(TRAINING, scored=True)),
    "one layer, in a job that trains all": ([GREETING], TRAIN, replace(TRAINING, layers=[0])),
    "an adapter that builds on version -1": ([GREETING], TRAIN, replace(TRAINING, base=-1)),
    "a round without a handshake": ([], TRAIN, replace(TRAINING, state={KEY: torch.ones(2, 3)})),
    "tensors under keys of the server's choice": ([GREETING], TRAIN, replace(TRAINING, state={"x": torch.ones(2, 3)})),
    "a tensor a thousand times as long": ([GREETING], TRAIN, replace(TRAINING, state={KEY: torch.ones(2000, 3)})),
    "tensors of another dtype": ([GREETING], TRAIN, replace(TRAINING, state={KEY: torch.ones(2, 3).double()})),
    "an adapter that builds on one the site never had": ([GREETING], TRAIN, replace(TRAINING, base=7)),
    "a text for the round": ([GREETING], TRAIN, replace(TRAINING, round="1")),
    "a task of another name": ([GREETING], "get_data", TRAINING),
}


def settings_rows() -> Iterator[Row]:
    """A job that asks for what the site policy does not allow."""
    for name, sections in SETTINGS.items():
        yield name, *_ask(HELLO, GREETING, sections=sections)


def sum_rows() -> Iterator[Row]:
    """A job that treats single sites differently, at a site whose site policy lets nothing but a sum leave."""
    for name, sections in SINGLE.items():
        method = {"aggregation": "fedavg", "secure_sum": True, **sections.get("method", {})}
        own = {"sum_with": ["north", "south", "west"]}
        yield name, *_ask(HELLO, GREETING, sections={**sections, "method": method}, own=own)


def order_rows() -> Iterator[Row]:
    """A server that asks for what its job does not provide for."""
    for name, (before, task, order) in ORDERS.items():
        yield name, *_ask(task, order, before=before)


def _ask(
    task: str,
    order: Any,
    *,
    before: list[Any] = (),
    sections: dict[str, Any] | None = None,
    own: dict[str, Any] | None = None,
) -> tuple[str, str]:
    """What a site answers, as the server prints it, and what it lost by the question."""
    changed = {name: values and SECTIONS[name] | values for name, values in (sections or {}).items()}
    with _site(own or {}) as (root, context):
        for earlier in before:
            note_order(earlier, root / "run" / "fedpeft")
            accept(Introduction(version="1", schema=SCHEMA), root / "run" / "fedpeft")
        state = root / "fedpeft"
        was = _content(state)
        executor = SiteExecutor(**SECTIONS | changed)
        executor._supervisor.close()  # it gets no request
        context.set_prop(FLContextKey.TASK_NAME, task, private=True, sticky=False)
        reply = executor.execute(task, FLModelUtils.to_shareable(to_model(order, round=1)), context, Signal())
        kept = "the state of other jobs is as it was" if _content(state) == was else "the state of jobs differs"
        noted = root / "run" / "fedpeft" / PROBLEM
        full = (
            json.loads(noted.read_text())["problem"].replace(str(root), "…")
            if noted.exists()
            else "no task of fedpeft."
        )
        left = "a value" if SECRET in repr(reply) or str(root) in repr(reply) else "no value"
    return f"{full} The server reads: {_printed(reply)}", f"{left} left the site, {kept}"


def _printed(reply: Shareable) -> str:
    if "DXO" not in reply:
        return reply.get_return_code()
    fields = FLModelUtils.from_shareable(reply).meta[FIELDS]
    if not fields["problem"]:
        return "nothing, the site did it"
    return sentence(fields["problem"], fields["setting"])


@contextmanager
def _site(own: dict[str, Any]) -> Iterator[tuple[Path, FLContext]]:
    """A site's folder with its site policy and the state of another job, and what FLARE says there."""
    root = Path(tempfile.mkdtemp())
    for folder in ("startup", "local", "run/fedpeft", f"fedpeft/{VICTIM}/round-00003"):
        (root / folder).mkdir(parents=True)
    (root / "startup" / "fed_client.json").write_text("{}")
    (root / "local" / "fedpeft.json").write_text(json.dumps(own))
    (root / "fedpeft" / VICTIM / "job.json").write_text('{"settings": {"training": {"rounds": 30}}, "jobs": ["b"]}')
    (root / "fedpeft" / VICTIM / "round-00003" / "adapter.safetensors").write_bytes(b"adapter")
    workspace = SimpleNamespace(
        get_startup_kit_dir=lambda: str(root / "startup"),
        get_site_config_dir=lambda: str(root / "local"),
        get_root_dir=lambda: str(root),
        get_run_dir=lambda job: str(root / "run"),
    )
    context = FLContext()
    context.set_prop(ReservedKey.ENGINE, SimpleNamespace(get_workspace=lambda: workspace), private=True)
    context.set_prop(ReservedKey.IDENTITY_NAME, "north")
    context.set_prop(ReservedKey.RUN_NUM, "job-1")
    logging.disable(logging.CRITICAL)
    try:
        yield root, context
    finally:
        logging.disable(logging.NOTSET)
        shutil.rmtree(root, ignore_errors=True)


def _content(folder: Path) -> dict[str, Any]:
    """Every file under a folder that the job of these attacks has not made itself."""
    files = (path for path in folder.rglob("*") if path.is_file() and OWN not in path.parts)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
