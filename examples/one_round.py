# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""One round of a federation in plain lines: three sites score, are scheduled, train, are aligned and integrated.

    python examples/one_round.py

Data are procedural and the backbone is tiny, so the figures say nothing about medicine. `fedpeft.federate.federate`
runs the rounds of any job in this way, and FLARE's controller sends the same steps as messages.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from fedpeft.alignment import PIASettings, integrate
from fedpeft.core.states import State
from fedpeft.job.composing import compose
from fedpeft.scheduling import choose, schedule
from fedpeft.site.learner import Learner

CONFIGS = Path(__file__).parents[1] / "app_configs"
SITES = ["slake", "vqa-med-2019", "vqa-rad"]
BUDGETS = [6, 8, 6]  # layers that each site can train, of twelve
SETTINGS = ["training.rounds=1", "training.local_epochs=6", "data.train_size=120", "data.test_size=60"]


def percent(sites: dict[str, Learner]) -> str:
    """The accuracy of each site's model on its own test split."""
    return ", ".join(f"{name} {100 * site.evaluate()['overall']:.1f} %" for name, site in sites.items())


def one_round() -> State:
    """Run the round, print the accuracies before and after it, and return the global adapter."""
    sections = compose(CONFIGS, "f3ocus_task1", SETTINGS)
    with TemporaryDirectory() as folder:
        sites = {name: Learner.from_sections(sections, site=name, folder=Path(folder, name)) for name in SITES}
        start = sites["slake"].first_state()  # the adapter that all sites start from: (r, d) and (d, r) for each layer
        print("before  ", percent(sites))

        # each site scores its layers on its own data; the server weighs importance against an even use of the layers
        scores = [site.score_layers(1, start) for site in sites.values()]  # (sites, layers)
        front = schedule(scores, BUDGETS, solver="exact", clients=SITES)
        mask = choose(front)  # (sites, layers), whether a site trains a layer
        layers = {name: row.nonzero()[0].tolist() for name, row in zip(SITES, mask, strict=True)}
        print("layers  ", layers)

        # each site trains its layers and its head, which never leaves it
        updates = {name: site.train_round(1, start, layers[name]) for name, site in sites.items()}
        print("trained ", percent(sites))

        # the server aligns the neurons of each layer to their mean, then averages them over the sites that trained it
        adapters, samples = [u.state for u in updates.values()], [u.samples for u in updates.values()]
        merged, report = integrate(adapters, samples, PIASettings(gamma=0.1), sites=SITES, previous=start)
        print("moved   ", {name: f"{100 * figures['moved']:.0f} %" for name, figures in report["sites"].items()})

        for site in sites.values():
            site.trainable.load(merged)  # beside the site's own head
        print("merged  ", percent(sites))
    return merged


if __name__ == "__main__":
    one_round()
