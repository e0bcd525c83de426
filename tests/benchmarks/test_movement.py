# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""movement.py: the forms of FedPIA move the global adapter as far as docs/fedpia.md derives."""

import pytest


@pytest.mark.slow
def test_the_second_round_of_half_of_the_own_adapter_moves_about_half_as_far(benchmark):
    movement = benchmark("movement")
    small = ["federation.sites=[slake, vqa-rad]", "data.train_size=32", "data.test_size=4", "training.rounds=2"]
    small += ["training.optimizer=adamw", "training.learning_rate=1e-3", "training.weight_decay=0"]
    fedavg, half = (movement.lengths([*movement.ROWS[row], *small]) for row in ("FedAvg", "frozen_half"))
    assert half[0] == pytest.approx(fedavg[0], rel=0.1)  # in the first round every site starts from what it received
    assert 0.3 < half[1] / fedavg[1] < 0.7
