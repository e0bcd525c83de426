# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What several test folders share: a random two-layer ViLT on disk, and learners on a few phantom samples."""

import gc
import json
import logging
import os
import sys
from itertools import zip_longest
from pathlib import Path

import pytest
from warm_python import COMMAND, start_or_find, use_python
from xdist.scheduler import LoadScopeScheduling

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# a machine may forbid to keep compiled modules; every process of a run would compile all that it imports
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# pytest-xdist has one worker per core, and a job in the simulator one process per site: threads would only wait
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

COSTS = ("consortium", "simulator", "slow")
# of the consortium's tests, those that start server and sites of their own
OWN_PROCESSES = ("test_page.py", "test_scripts.py", "test_secure_sum_kits.py")
# those that kill processes of a running federation: each has one of its own where several processes run tests
KILLING = ("test_kills.py", "test_returning.py")
# long ones in which no test is marked as slow
LONG = ("test_jobs.py", "test_computing.py", "test_guards.py", "test_scheduled_learner.py")

start_or_find()

METHODS = ("houlsby", "pfeiffer", "parallel", "lora", "compacter")
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz?'-0123456789"]


def pytest_configure(config):
    """The processes of pytest-xdist have their imports already."""
    config.option.tx = [f"{how}//python={os.environ[COMMAND]}" for how in config.option.tx]


def pytest_collection_finish():
    """Python's collector of garbage leaves out what is there from now on, and looks more rarely through the rest."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


def pytest_collection_modifyitems(items):
    """What takes longest comes first, and what waits for FLARE beside what computes.

    pytest-xdist hands out tests in this order.
    """
    items.sort(key=_order)
    waiting, computing = {}, {}
    for item in items:
        scope = _scope(item.nodeid)
        of_flare = scope in waiting or (scope not in computing and _order(item)[0] < COSTS.index("slow"))
        (waiting if of_flare else computing).setdefault(scope, []).append(item)
    turns = zip_longest(waiting.values(), computing.values(), fillvalue=())
    items[:] = [item for turn in turns for tests in turn for item in tests]


def _order(item) -> tuple[int, bool, bool, bool, bool]:
    rank = next((rank for rank, marker in enumerate(COSTS) if item.get_closest_marker(marker)), len(COSTS))
    file = item.path.name
    # the console's tests shut the shared federation down
    return rank, file not in LONG, file in OWN_PROCESSES, file == "test_console.py", file not in KILLING


def _scope(nodeid: str) -> str:
    """The tests that share what they started: those of a file, or those of the running federation."""
    file = Path(nodeid.partition("::")[0])
    if file.parent.name != "consortium" or file.name in OWN_PROCESSES:
        return str(file)
    return str(file) if file.name in KILLING else "consortium"


class SharedProcesses(LoadScopeScheduling):
    """Tests that share what they started run in one worker.

    `--dist loadgroup` does the same, but not with pytest 9.2 and pytest-xdist 3.8.
    """

    def _split_scope(self, nodeid: str) -> str:
        return _scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """How tests are spread over the processes of pytest-xdist."""
    return SharedProcesses(config, log)


@pytest.fixture(params=METHODS)
def kind(request) -> str:
    """Each method with neurons that can be aligned."""
    return request.param


@pytest.fixture(scope="session")
def tiny_source(tmp_path_factory) -> str:
    """Folder of a two-layer ViLT with random weights and a tokenizer of single letters."""
    from tiny_vilt import tiny_vilt
    from transformers import BertTokenizerFast

    folder = tmp_path_factory.mktemp("tiny_vilt")
    words = [*TOKENS, *(f"##{token}" for token in TOKENS[5:])]
    sizes = {"hidden_size": 16, "intermediate_size": 32, "vocab_size": len(words), "max_position_embeddings": 40}
    tiny_vilt(**sizes).save_pretrained(folder)
    BertTokenizerFast(vocab={word: number for number, word in enumerate(words)}).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def encoders(tmp_path_factory) -> dict:
    """The section `backbone` of a small MMBT with random weights."""
    import torch
    from small_models import bert, resnet

    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        source, image = (str(save(tmp_path_factory.mktemp(save.__name__))) for save in (bert, resnet))
    return {"name": "mmbt", "source": source, "image_source": image, "text_length": 16}


@pytest.fixture(scope="session")
def fresh_processes():
    """Processes that know nothing of fedpeft yet."""
    from fresh import FreshProcesses

    processes = FreshProcesses()
    yield processes
    processes.close()


@pytest.fixture(autouse=True, scope="module")
def kept_backbones(request):
    """A small backbone is read once in a process, but for the tests of reading; where nothing has one, for none."""
    if request.path.parent.name == "backbones" or "fedpeft.backbones.backbone" not in sys.modules:
        yield
        return
    from kept_backbones import kept_backbones

    with kept_backbones():
        yield


@pytest.fixture(autouse=True)
def own_log_records():
    """A run limits the records of its whole process; the next test makes its own again."""
    make = logging.getLogRecordFactory()
    yield
    logging.setLogRecordFactory(make)


@pytest.fixture(autouse=True)
def all_plugins():
    """A process of a site keeps to the plugins of its file; the next test looks up all again."""
    from fedpeft.core.registry import only_plugins

    yield
    only_plugins(None)


@pytest.fixture
def warm_python() -> str:
    """The command whose processes have their imports already; processes are started with it."""
    true = sys.executable
    use_python(os.environ[COMMAND])
    yield sys.executable
    use_python(true)


@pytest.fixture(scope="session")
def fork_server_name():
    """Name of a fork server, as it stands in the environment of the processes that use it."""
    from fedpeft.site import fork_server

    true = sys.executable
    use_python(os.environ[COMMAND])
    server = fork_server.start()
    use_python(true)
    yield os.environ.pop(fork_server.ADDRESS)
    server.stdin.close()
    assert server.wait(60) == 0


@pytest.fixture(scope="session")
def small_policy(tiny_source) -> dict:
    """What the site policy says where the small job may run: few samples, and that backbone."""
    least = dict.fromkeys(("min_train_samples", "min_train_images", "min_test_samples", "min_score_samples"), 4)
    return {**least, "sources": [tiny_source]}


@pytest.fixture(scope="session")
def small_settings(tiny_source) -> list[str]:
    """The settings that make a small job of fedpia_task1: two rounds, five sites, few samples, FedPIA's merge of
    halves, which goes with any schedule, width and integration."""
    return [
        f"backbone.source={tiny_source}",
        "training.rounds=2",
        "method.probe_samples=8",
        "method.pia.share=0.5",
        "method.pia.accept=false",
        "data.train_size=16",
        "data.validation_size=4",
        "data.test_size=8",
    ]


@pytest.fixture(scope="session")
def sections(small_settings):
    """Function from overrides to the sections of the small job."""
    from fedpeft.job.composing import compose

    def build(*overrides: str) -> dict:
        return compose(Path(__file__).parents[1] / "app_configs", "fedpia_task1", [*small_settings, *overrides])

    return build


@pytest.fixture(scope="session")
def tables(tmp_path_factory) -> dict:
    """By kind (questions, classes or labels), a folder with a manifest."""
    from trained_sites import COLUMNS, table

    folder = tmp_path_factory.mktemp("tables")
    return {kind: table(folder / kind, kind) for kind in COLUMNS}


@pytest.fixture(scope="session")
def of_tables(tables, sections, tmp_path_factory) -> dict:
    """By kind, a site that has finished all rounds on that table: its folder, and the metrics of its last round."""
    from trained_sites import trained

    folder = tmp_path_factory.mktemp("trained")
    done = {}
    for kind, root in tables.items():
        chosen = sections("method.aggregation=fedavg", "training.local_epochs=2", "training.thresholds=validation")
        chosen = json.loads(json.dumps(chosen)) | {"data": {"dataset": "manifest", "root": str(root)}}
        done[kind] = trained(chosen, folder / kind, sites=("slake",))["slake"]
    return done
