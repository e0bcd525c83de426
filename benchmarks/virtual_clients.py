# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Many clients of one data set on one machine, some drawn in each round: time beside bare training, and memory.

    python benchmarks/virtual_clients.py                                       # 100 clients, 10 a round, 30 rounds
    python benchmarks/virtual_clients.py --clients 1000 --drawn 50 --rounds 10
    python benchmarks/virtual_clients.py --clients 20 --drawn 4 --rounds 2 --backbone vilt
    python benchmarks/virtual_clients.py --rounds 3 --engines pool flare       # FLARE's simulator: minutes a round
    python benchmarks/virtual_clients.py --rounds 3 --engines pool flower --flower-python ~/flower/bin/python

It runs fedpia_task4 with FedAvg. `bare` is the training of the same clients in the same rounds, in one process and
nothing else: no server, no messages; what an engine needs is compared with that, divided by the processes. On a
machine that others use too, compare the seconds of CPU. Memory is the sum over all processes of the run of what each
has to itself and its part of what they share (PSS), looked at every second. `vilt` is ViLT-B from its configuration,
with random weights.

Flower's simulation has actors of Ray that train with the same code on the same data; each keeps one model, as the pool
does. It has an environment of its own, because Flower and FLARE ask for different versions of protobuf:

    python -m venv ~/flower && ~/flower/bin/pip install uv
    ~/flower/bin/uv pip install --python ~/flower/bin/python "flwr[simulation]" torch==2.13.0 transformers==5.23.0 -e .

pip alone searches for versions that fit for more than ten minutes; torch and transformers are those of constraints.txt.

pfl-research (Granqvist et al. 2024, arXiv:2404.06430) is not run. It publishes the pool's way: each process has one
model, and users take turns; it adds up their updates in the process, and keeps no state of a user between rounds.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from measured import ROOT, machine, python, show

from fedpeft.job.composing import compose, write_job

EVERY = 1.0  # seconds
BARE = "bare training"
SECONDS = "seconds.json"
FLOWER_ROUNDS = re.compile(r"Run finished [0-9]+ round\(s\) in ([0-9.]+)s")
SMALL = ("data.train_size=40", "data.validation_size=8", "data.test_size=16")


def sections(clients: int, drawn: int, rounds: int, backbone: Sequence[str]) -> dict[str, Any]:
    """The job."""
    names = ",".join(f"client-{number}" for number in range(1, clients + 1))
    settings = [
        f"data.parts={clients}",
        f"schedule.clients_per_round={drawn}",
        f"federation.sites=[{names}]",
        "federation.hello_timeout=36000",
        "federation.round_timeout=36000",
        f"training.rounds={rounds}",
        "method.aggregation=fedavg",
        *SMALL,
        *backbone,
    ]
    return compose(ROOT / "app_configs", "fedpia_task4", settings)


def vilt(folder: Path) -> list[str]:
    """ViLT-B with random weights and the words of the tiny one: the settings that read it."""
    import torch
    from transformers import BertTokenizerFast, ViltConfig, ViltModel

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz0123456789?'-.,"]
    torch.manual_seed(0)  # whoever writes it, the same weights
    ViltModel(ViltConfig()).save_pretrained(folder)
    BertTokenizerFast(vocab={word: number for number, word in enumerate(words)}).save_pretrained(folder)
    return ["backbone.name=vilt", f"backbone.source={folder}"]


def memory(process: psutil.Process) -> int:
    """Bytes of a process and all that it started."""
    total = 0
    for one in (process, *process.children(recursive=True)):
        try:
            total += one.memory_full_info().pss
        except psutil.Error:  # it has just ended
            continue
    return total


def note_cpu(process: psutil.Process, spent: dict[tuple[int, float], float]) -> None:
    """Note the seconds of CPU so far of a process and all that it started, by process; also of those that end later.

    The system adds up those that were waited for alone, and the workers of a fork server are not.
    """
    for one in (process, *process.children(recursive=True)):
        try:
            times = one.cpu_times()
            spent[one.pid, one.create_time()] = times.user + times.system
        except psutil.Error:
            continue


def watched(
    line: Sequence[str], log: Path, look: Callable[[psutil.Process], int] = memory
) -> tuple[float, float, float]:
    """Run a command; its seconds, those of CPU, and the most GiB that it and its processes had at once.

    Args:
        line: the command.
        log: file for what it prints.
        look: from its process to bytes.

    Raises:
        RuntimeError: it failed; with the end of what it printed.
    """
    most, began = 0, time.monotonic()
    spent: dict[tuple[int, float], float] = {}
    with log.open("wb") as output, subprocess.Popen(line, stdout=output, stderr=subprocess.STDOUT) as running:
        family = psutil.Process(running.pid)
        while running.poll() is None:
            most = max(most, look(family))
            note_cpu(family, spent)
            time.sleep(EVERY)
    seconds = time.monotonic() - began
    if running.returncode:
        raise RuntimeError(f"the run ended with {running.returncode}:\n{log.read_text()[-2000:]}")
    return seconds, sum(spent.values()), most / 2**30


def bare(file: Path, folder: Path) -> None:
    """Train and measure all rounds in this process; writes the seconds of that, and those of CPU, and of nothing else.

    Called in a process of its own.
    """
    from fedpeft.federate import federate
    from fedpeft.site.learner import Learner
    from fedpeft.site.site_model import SharedModels

    chosen = json.loads(file.read_text())
    shared, sites = SharedModels(), chosen["federation"]["sites"]
    made = {site: Learner.from_sections(chosen, site=site, folder=folder / site, shared=shared) for site in sites}
    spent = cpu = 0.0
    for learner in made.values():
        train = learner.train_round

        def timed(*arguments: Any, train: Callable = train, **named: Any) -> Any:
            nonlocal spent, cpu
            began, before = time.monotonic(), time.process_time()
            result = train(*arguments, **named)
            spent += time.monotonic() - began
            cpu += time.process_time() - before
            return result

        vars(learner)["train_round"] = timed
    for _ in federate(made):
        pass
    (folder / SECONDS).write_text(json.dumps([spent, cpu]))


def flower(file: Path, folder: Path, workers: int) -> None:
    """Run the job in Flower's simulation; called in a process of its own."""
    import flwr
    import ray
    import torch
    from flwr.common import Context, ndarrays_to_parameters
    from flwr.simulation import run_simulation

    chosen = json.loads(file.read_text())
    names, settings = chosen["federation"]["sites"], chosen["schedule"]

    def client(context: Context) -> flwr.client.Client:
        site = names[int(context.node_config["partition-id"])]
        return _client(chosen, site, folder / site).to_client()

    first = _learner(chosen, names[0], folder / names[0]).first_state()
    share = settings["clients_per_round"] / len(names)
    strategy = flwr.server.strategy.FedAvg(
        fraction_fit=share,
        fraction_evaluate=0.0,
        min_fit_clients=settings["clients_per_round"],
        min_available_clients=len(names),
        initial_parameters=ndarrays_to_parameters([tensor.numpy() for tensor in first.values()]),
    )

    def server(context: Context) -> flwr.server.ServerAppComponents:
        config = flwr.server.ServerConfig(num_rounds=chosen["training"]["rounds"])
        return flwr.server.ServerAppComponents(strategy=strategy, config=config)

    torch.set_num_threads(1)
    run_simulation(
        server_app=flwr.server.ServerApp(server_fn=server),
        client_app=flwr.client.ClientApp(client_fn=client),
        num_supernodes=len(names),
        backend_config={"client_resources": {"num_cpus": psutil.cpu_count() / workers, "num_gpus": 0.0}},
    )
    ray.shutdown()


_kept: dict[str, Any] = {}  # of an actor's process: its model, and the learners of the sites it had


def _learner(chosen: Mapping[str, Any], site: str, folder: Path) -> Any:
    from fedpeft.site.learner import Learner
    from fedpeft.site.site_model import SharedModels

    shared = _kept.setdefault("", SharedModels())
    if site not in _kept:
        _kept[site] = Learner.from_sections(chosen, site=site, folder=folder, shared=shared)
    return _kept[site]


def _client(chosen: Mapping[str, Any], site: str, folder: Path) -> Any:
    import flwr
    import torch

    class Client(flwr.client.NumPyClient):
        """Trains as a site of fedpeft does."""

        def fit(self, parameters: list, config: dict) -> tuple[list, int, dict]:
            learner = _learner(chosen, site, folder)
            keys = list(learner.first_state())
            state = {key: torch.from_numpy(array.copy()) for key, array in zip(keys, parameters, strict=True)}
            last = learner.finished(10**6)
            update = learner.train_round(last + 1, state)
            return [update.state[key].numpy() for key in keys], update.samples, {}

    return Client()


def command(engine: str, given: argparse.Namespace, folder: Path) -> list[str]:
    """The command line of an engine, or of bare training; FileNotFoundError where Flower is not installed."""
    workspace, settings = str(folder / engine), str(folder / "sections.json")
    if engine == BARE:
        return python(__file__, "--inner", BARE, settings, workspace)
    if engine == "flower":
        line = [given.flower_python, __file__, "--workers", str(given.workers), "--inner", engine, settings, workspace]
        if subprocess.run([given.flower_python, "-c", "import flwr, ray, fedpeft"], capture_output=True).returncode:
            raise FileNotFoundError("not installed: --help says how")
        return line
    job = ("-m", "fedpeft.cli", "simulate", str(folder / "job"), "--engine", engine)
    return python(*job, "-t", str(given.workers), "-w", workspace)


def measure(engine: str, given: argparse.Namespace, folder: Path) -> tuple[float, ...]:
    """Seconds of a whole run and of its rounds, seconds of CPU, and the most GiB."""
    log = folder / f"{engine}.log"
    seconds, cpu, most = watched(command(engine, given, folder), log)
    rounds = float(said[1]) if (said := FLOWER_ROUNDS.search(log.read_text())) else seconds
    history = folder / engine / "server" / "simulate_job" / "fedpeft" / "history.json"
    if history.exists():
        rounds = sum(one["seconds"] for one in json.loads(history.read_text())["rounds"])
    if engine == BARE:
        rounds, cpu = json.loads((folder / engine / SECONDS).read_text())
    return seconds, rounds, cpu, most


def row(engine: str, taken: tuple[float, ...] | str, training: tuple[float, ...], workers: int) -> list[str]:
    """A row of the table; beside the figures of bare training."""
    if isinstance(taken, str):
        return [engine, taken]
    seconds, rounds, cpu, most = taken
    processes = 1 if engine == BARE else workers
    ratios = f"{rounds / (training[1] / processes):.2f}", f"{cpu:.0f}", f"{cpu / training[2]:.2f}"
    return [engine, f"{seconds:.0f}", f"{rounds:.0f}", *ratios, f"{most:.1f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--drawn", type=int, default=10, help="clients in each round")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--workers", type=int, default=2, help="clients that work at the same time")
    parser.add_argument("--backbone", choices=("tiny", "vilt"), default="tiny")
    parser.add_argument("--engines", nargs="+", choices=("pool", "flare", "flower"), default=["pool"])
    parser.add_argument("--flower-python", default=sys.executable, help="Python of the environment with Flower")
    parser.add_argument("--inner", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inner:
        engine, file, workspace = given.inner[0], *map(Path, given.inner[1:])
        bare(file, workspace) if engine == BARE else flower(file, workspace, given.workers)
        return
    print(machine(), flush=True)
    taken: dict[str, tuple[float, ...] | str] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        backbone = vilt(folder / "vilt") if given.backbone == "vilt" else []
        chosen = sections(given.clients, given.drawn, given.rounds, backbone)
        write_job(folder / "job", "many", chosen)
        (folder / "sections.json").write_text(json.dumps(chosen))
        (folder / BARE).mkdir()
        for engine in (*given.engines, BARE):
            try:
                taken[engine] = measure(engine, given, folder)
            except FileNotFoundError as error:
                taken[engine] = str(error)
            print(f"{engine}: {taken[engine]}", file=sys.stderr, flush=True)
    training = taken[BARE]
    show(
        f"{given.clients} clients, {given.drawn} a round, {given.rounds} rounds, {given.workers} at a time, "
        f"backbone {given.backbone}",
        ("engine", "seconds", "in the rounds", "rounds / (bare / processes)", "CPU", "CPU / bare", "GiB at most"),
        [row(engine, one, training, given.workers) for engine, one in taken.items()],
        "One run of each. In Flower's rounds its actors load their model. CPU is that of the whole run, with start and "
        "handshake; of bare training, of that alone.",
    )


if __name__ == "__main__":
    main()
