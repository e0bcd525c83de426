# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""One of five sites poisons what it sends, round after round: what is left of the others' accuracy with each average.

    python benchmarks/attacks.py --poisoning [--seeds 0 1] [--set SECTION.NAME=VALUE]
    python benchmarks/attacks.py --only lengths     sites that hardly move, move slowly but always, or lie about figures

The same federation in one process, without FLARE: same data, steps and seeds, procedural data, tiny backbone. What the
poisoner sends starts from what it trained; the accuracy is the mean over the four honest sites' test splits.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from measured import machine, sections, show

from fedpeft.core.metrics import VALIDATION
from fedpeft.core.seeds import derive
from fedpeft.federate import RoundResult, federate
from fedpeft.server.update_check import update_length
from fedpeft.site.learner import Learner

POISONER = "vqa-rad"
SMALL = (
    "training.rounds=3",
    "data.train_size=48",
    "data.validation_size=4",
    "data.test_size=40",
    "method.probe_samples=16",
)
FEDAVG = ("method.aggregation=fedavg",)
HALF = (  # in weight space; a robust average needs a number as share
    "method.pia.integration=weight_space",
    "method.pia.share=0.5",
    "method.pia.accept=false",
)
OPEN = "method.robust.update_factor=0"  # no update is refused for its length
DEFENSES: dict[str, Sequence[str]] = {
    "FedAvg, mean, no limit": (*FEDAVG, OPEN),
    "FedAvg, mean (the default)": FEDAVG,
    **{
        f"FedAvg, {rule}, no limit": (*FEDAVG, OPEN, f"method.robust.average={rule}")
        for rule in ("median", "geometric_median", "trimmed_mean", "krum", "multi_krum")
    },
    "FedPIA in weight space, mean, no limit": (*HALF, OPEN),
    "FedPIA in weight space, median, no limit": (*HALF, OPEN, "method.robust.average=median"),
}
State = dict[str, torch.Tensor]
Attack = Callable[[State, State, torch.Generator], State]


def _noise(sent: State, start: State, generator: torch.Generator) -> State:
    return {key: tensor + torch.randn(tensor.shape, generator=generator) for key, tensor in sent.items()}


def _sign_flips(sent: State, start: State, generator: torch.Generator) -> State:
    return {key: start[key] - 5 * (tensor - start[key]) for key, tensor in sent.items()}


def _scaled(sent: State, start: State, generator: torch.Generator) -> State:
    return {key: start[key] + 100 * (tensor - start[key]) for key, tensor in sent.items()}


def _hardly_moves(sent: State, start: State, generator: torch.Generator) -> State:
    return {key: start[key] + 1e-6 * (tensor - start[key]) for key, tensor in sent.items()}


def _one_way(times: float) -> Attack:
    """As far as so many of its own honest updates, in every round in the same direction."""

    def attack(sent: State, start: State, generator: torch.Generator) -> State:
        length, same = times * update_length(sent, start), torch.Generator().manual_seed(0)
        signs = {key: torch.randn(tensor.shape, generator=same).sign() for key, tensor in sorted(sent.items())}
        return {key: start[key] + length * signs[key] for key in sent}

    return attack


ATTACKS: dict[str, Attack] = {
    "nothing": lambda sent, start, generator: sent,
    "noise of 1": _noise,
    "its change times -5": _sign_flips,
    "its change times 100": _scaled,
}
FEW = ("data.train_size=32", "data.validation_size=4", "data.test_size=4", *FEDAVG)
ROUNDS = 12
SLOW = (*FEW, f"training.rounds={ROUNDS}", "training.decay=none")
MEDIAN = "method.robust.average=median"
ONE_WAY: dict[str, tuple[float, Sequence[str]]] = {  # as many of its updates in every round; settings
    "9 of its updates, mean, no limit": (9.0, (OPEN,)),
    "9 of its updates, mean (the default)": (9.0, ()),
    "3 of its updates, mean (the default)": (3.0, ()),
    "3 of its updates, median": (3.0, (MEDIAN,)),
}
SITES = ("slake", "vqa-med-2019", "vqa-med-2020", "vqa-med-2021")


class Poisoner:
    """A learner that changes what it sends; everything else is that of the learner.

    Args:
        learner: a sound one.
        attack: what it sends, from what it trained and what it started from.
        validation: by round, what it says that it reaches on its validation split; empty: what it does reach.
    """

    def __init__(self, learner: Learner, attack: Attack, validation: Sequence[float] = ()) -> None:
        self._learner, self._attack, self._validation = learner, attack, validation
        self._first = learner.trainable.state()

    def __getattr__(self, name: str) -> object:
        return getattr(self._learner, name)

    def train_round(self, round: int, received: State, layers: Sequence[int] | None = None, *, part: float = 0.0):
        """Train as ordered, then falsify the upload."""
        update = self._learner.train_round(round, received, layers, part=part)
        generator = torch.Generator().manual_seed(derive(self._learner.training.seed, "poison", round))
        lie = {VALIDATION: self._validation[round - 1]} if self._validation else {}
        state = self._attack(update.state, received or self._first, generator)
        return replace(update, state=state, metrics=update.metrics | lie)


def accuracy(attack: str, overrides: Iterable[str], seed: int) -> tuple[float | None, int]:
    """Mean accuracy of the honest sites after the last round (None: training diverged), and refused updates."""
    job = sections([*SMALL, *overrides, f"training.seed={seed}"])
    refused = 0
    with tempfile.TemporaryDirectory() as folder:
        learners: dict[str, Learner | Poisoner] = {
            site: Learner.from_sections(job, site=site, folder=Path(folder) / site)
            for site in job["federation"]["sites"]
        }
        learners[POISONER] = Poisoner(learners[POISONER], ATTACKS[attack])
        try:
            for result in federate(learners):
                refused += len(result.refused)
        except ValueError:  # FedpeftError: a loss or the global adapter is not finite any more
            return None, refused
    honest = [update.metrics["overall"] for site, update in result.updates.items() if site != POISONER]
    return statistics.mean(honest), refused


def _rounds(
    sites: Sequence[str], faulty_sites: int, attack: Attack, overrides: Sequence[str], validation: Sequence[float] = ()
) -> list[RoundResult]:
    """All rounds of a federation whose last sites are hostile."""
    job = sections([*SMALL, *overrides, f"federation.sites=[{', '.join(sites)}]"])
    with tempfile.TemporaryDirectory() as folder:
        learners = {s: Learner.from_sections(job, site=s, folder=Path(folder) / s) for s in sites}
        hostile = {s: Poisoner(learners[s], attack, validation) for s in sites[len(sites) - faulty_sites :]}
        return list(federate(learners | hostile))


def _way(results: Sequence[RoundResult]) -> float:
    """How far the global adapter moved after round 1, in a straight line."""
    return update_length(results[-1].state, results[0].state)


def rows() -> Iterator[tuple[str, str, str]]:
    """Replies that are below every limit of one round."""
    names = (*SITES, POISONER)
    for count, faulty_sites in ((2, 1), (3, 2), (4, 2)):
        results = _rounds(names[-count:], faulty_sites, _hardly_moves, FEW)
        refused = [site for result in results for site in result.refused]
        name = f"{faulty_sites} of {count} sites: its update times 1e-6, in every round"
        lost = f"{len(refused)} of {len(results) * (count - faulty_sites)} honest replies"
        yield name, f"{len(refused)} replies were refused: {', '.join(refused) or 'none'}", lost
    for count in (3, 5):
        sites = names[-count:]
        honest = _way(_rounds(sites, 0, ATTACKS["nothing"], SLOW))
        for name, (times, rule) in ONE_WAY.items():
            results = _rounds(sites, 1, _one_way(times), (*SLOW, *rule))
            refused = [result.round for result in results if POISONER in result.refused]
            others = {site for result in results for site in result.refused} - {POISONER}
            happened = f"refused in {len(refused)} of {ROUNDS} rounds" + f"; also {', '.join(others)}" * bool(others)
            lost = f"the global adapter moved {_way(results) / honest:.1f} times as far as without it"
            yield f"1 of {count} sites, in one direction in every round: {name}", happened, lost
    for count in (2, 3, 5):
        sites = names[-count:]
        chosen = (*SLOW, "training.patience=3", "data.validation_size=32")
        whole, lied = (_rounds(sites, n, ATTACKS["nothing"], chosen, [1.0] + [0.0] * ROUNDS) for n in (0, 1))
        happened = f"the job ended after round {len(lied)} of {ROUNDS}, without it after round {len(whole)}"
        lost = f"{max(len(whole) - len(lied), 0)} rounds"
        yield f"1 of {count} sites: validation 1.0 and then 0, with training.patience=3", happened, lost


def run(overrides: Iterable[str], seeds: Sequence[int]) -> None:
    """Measure and print the table."""
    torch.set_num_threads(1)
    print(machine(), flush=True)
    began, rows = time.monotonic(), []
    for name, defense in DEFENSES.items():
        cells = []
        for attack in ATTACKS:
            measured = [accuracy(attack, [*defense, *overrides], seed) for seed in seeds]
            values, refused = [value for value, _ in measured if value is not None], sum(count for _, count in measured)
            text = f"{100 * statistics.mean(values):.1f}" if len(values) == len(measured) else "diverged"
            cells.append(text + (f" ({refused} refused)" if refused else ""))
        rows.append((name, *cells))
        print(*rows[-1], sep=" | ", flush=True)
    show(
        "Accuracy of the four honest sites (%), the fifth sends instead of its update:",
        ("average", *ATTACKS),
        rows,
        f"seeds {', '.join(map(str, seeds))}; 3 rounds, 48 training samples a site; no limit: update_factor 0; "
        f"{time.monotonic() - began:.0f} s",
    )
