# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""When a job ends before its last round: the mean figure of the validation splits has not improved for long enough."""

import pytest

from fedpeft.client.learner import Learner
from fedpeft.errors import FedpeftError
from fedpeft.federate import federate
from fedpeft.server.early_stop import best_before_end, mean_figures
from fedpeft.server.run_recorder import RunRecorder
from fedpeft.training_settings import TrainingSettings


def rounds(*figures):
    """Rounds of one site, or of two where a figure is a pair; None: not reported, "": takes no part."""
    pairs = [one if isinstance(one, tuple) else (one,) for one in figures]
    return [
        {name: {"validation": value} for name, value in zip("ab", pair, strict=False) if value != ""} for pair in pairs
    ]


@pytest.mark.parametrize(
    ("figures", "patience", "best"),
    [
        ([0.1, 0.3, 0.2, 0.2], 2, 2),
        ([0.1, 0.3, 0.2, 0.2], 3, None),
        ([0.1, 0.3, 0.2, 0.4], 2, None),
        ([0.3, 0.3, 0.3], 2, 1),  # equal is no improvement
        ([0.3, 0.2, 0.1], 0, None),
        ([0.3], 1, None),
        ([None, None, None], 1, None),  # no site says how good it is
        ([None, 0.2, 0.1], 1, 2),
        ([], 1, None),
        ([(0.2, 0.6), (0.4, 0.2)], 1, 1),  # the mean over the sites counts
        ([(0.2, 0.6), (0.3, ""), (0.1, "")], 2, None),  # a site that is away counts with what it had
        ([(0.2, 0.6), (0.3, ""), (0.1, "")], 1, 2),
        ([(0.2, None), (0.3, None), (0.1, None)], 1, 2),
    ],
)
def test_it_ends_when_nothing_since_the_best_round_was_better(figures, patience, best):
    assert best_before_end(rounds(*figures), patience) == best


def test_the_mean_is_over_each_sites_latest_figure():
    assert mean_figures(rounds((0.2, 0.6), (0.4, ""), (None, 0.2))) == pytest.approx([0.4, 0.5, 0.3])


@pytest.mark.slow
def test_a_federation_ends_early_with_the_bytes_that_it_has_then(sections, tmp_path):
    """Without improvement: a learning rate of almost nothing."""
    chosen = sections("training.rounds=5", "training.learning_rate=1e-12", "training.patience=2")

    def run(name, sections):
        sites = {s: Learner.from_sections(sections, site=s, folder=tmp_path / name / s) for s in ("slake", "vqa-rad")}
        return list(federate(sites))

    assert [one.round for one in run("early", chosen)] == [1, 2, 3]
    assert len(run("late", {**chosen, "training": {**chosen["training"], "patience": 5}})) == 5


def test_the_manifest_says_it(tmp_path):
    recorder = RunRecorder(tmp_path, job="small")
    recorder.history["rounds"] = [{"sites": one} for one in rounds(0.3, 0.2, 0.2)]
    assert recorder.ends_early(3) is None
    assert recorder.ends_early(2) == 1
    assert recorder._manifest["ended_early"] == {"after_round": 3, "best_round": 1, "patience": 2}


@pytest.mark.parametrize("setting", [{"patience": 3}, {"keep": "best"}])
def test_without_a_validation_figure_no_round_is_the_best(setting):
    with pytest.raises(FedpeftError, match="validate is false"):
        TrainingSettings(rounds=2, validate=False, **setting)
