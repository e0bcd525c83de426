# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""When a job ends before its last round: the validation splits have not improved for long enough."""

import pytest

from fedpeft.answering.training_settings import TrainingSettings
from fedpeft.core.errors import FedpeftError
from fedpeft.federate import federate
from fedpeft.server.planner import best_before_end, median_figures
from fedpeft.server.run_recorder import RunRecorder
from fedpeft.site.learner import Learner


def rounds(*figures):
    """Rounds of one site, or of several where figures are a tuple; None: not reported, "": takes no part."""
    tuples = [one if isinstance(one, tuple) else (one,) for one in figures]
    return [
        {name: {"validation": value} for name, value in zip("abcde", one, strict=False) if value != ""}
        for one in tuples
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
        ([(0.2, 0.6), (0.1, 0.5)], 1, 1),
        ([(0.2, 0.6), (0.4, 0.2)], 1, None),  # half of the sites improve
        ([(0.2, 0.6), (0.3, ""), (0.1, "")], 2, None),  # a site that is away counts with what it had
        ([(0.2, 0.6), (0.3, ""), (0.1, "")], 1, 2),
        ([(0.2, None), (0.3, None), (0.1, None)], 1, 2),
        ([(0.2, 0.9), (0.3, ""), (0.4, ""), (0.5, "")], 2, None),  # who reported once and vanished has no say
        ([(0.4, 0.5, 0.6), (0.3, 0.4, 0.5), (0.4, 0.5, 0.6)], 2, 1),
    ],
)
def test_it_ends_when_nothing_since_the_best_round_was_better(figures, patience, best):
    assert best_before_end(rounds(*figures), patience) == best


@pytest.mark.parametrize(
    "others", [[(0.3, 0.6), (0.4, 0.65), (0.5, 0.7), (0.55, 0.75)], [(0.3,), (0.4,), (0.5,), (0.6,)]]
)
@pytest.mark.parametrize("liar", [(1.0, 0.0, 0.0, 0.0), (0.0, 1.0, 0.0, 0.0), (1.0, "", "", ""), (0.5, 0.4, 0.3, 0.2)])
@pytest.mark.parametrize("patience", [1, 2, 3])
def test_one_site_cannot_end_a_job_in_which_the_others_improve(others, liar, patience):
    """Also one of two, and also where the figures of the others are far apart."""
    reported = [(lie, *honest) for lie, honest in zip(liar, others, strict=True)]
    assert [best_before_end(rounds(*reported[:n]), patience) for n in range(1, 5)] == [None] * 4


def test_the_median_is_over_each_sites_latest_figure():
    reported = rounds((0.2, 0.6), (0.4, ""), (None, 0.2), (0.4, 0.2, 1.0))
    assert median_figures(reported) == pytest.approx([0.4, 0.5, 0.3, 0.4])


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
