# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""aligned_at="site": what a site sends stands in the order of the global adapter, and the server only averages."""

import pytest
import torch
from samples import PLACES, at, generator, largest_difference, noisy, same_bytes, shuffled_state, state

from fedpeft.alignment import PIASettings, align_upload, integrate
from fedpeft.core.errors import FedpeftError

ANCHORED = PIASettings(aligned_at="site")
COUNTS = [10, 30, 20]


def test_the_order_of_a_sites_neurons_does_not_change_what_it_sends(kind):
    received = state(kind, generator(1))
    trained = noisy(received, generator(2), scale=0.1)
    for seed in (3, 4):
        reordered = shuffled_state(kind, trained, generator(seed))
        assert not same_bytes(reordered, trained)
        assert same_bytes(align_upload(reordered, received, ANCHORED), align_upload(trained, received, ANCHORED))


def test_shuffled_copies_of_the_global_adapter_come_back_from_the_server(kind):
    received = state(kind, generator(5))
    sent = [align_upload(shuffled_state(kind, received, generator(k)), received, ANCHORED) for k in range(3)]
    merged, _ = integrate(sent, COUNTS, ANCHORED, previous=received)
    assert all(torch.allclose(merged[key], received[key], rtol=0, atol=1e-6) for key in received)


def test_with_identical_orders_it_is_fedavg_to_the_bit(kind):
    received = state(kind, generator(6))
    trained = [noisy(received, generator(k), scale=0.001) for k in range(7, 10)]
    sent = [align_upload(one, received, ANCHORED) for one in trained]
    assert all(same_bytes(one, other) for one, other in zip(sent, trained, strict=True))
    merged, _ = integrate(sent, COUNTS, ANCHORED, previous=received)
    average, _ = integrate(trained, COUNTS, PIASettings(server=False), previous=received)
    assert same_bytes(merged, average)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_moves_neurons_and_keeps_the_function_and_the_dtype(kind, dtype):
    received = state(kind, generator(11))
    trained = {key: tensor.to(dtype) for key, tensor in state(kind, generator(12)).items()}
    before = {key: tensor.clone() for key, tensor in trained.items()}
    sent = align_upload(trained, received, ANCHORED)
    assert not same_bytes(sent, trained)
    assert same_bytes(trained, before)
    assert all(sent[key].dtype == dtype for key in trained)
    as_numbers = [{key: tensor.float() for key, tensor in one.items()} for one in (sent, trained)]
    assert largest_difference(kind, *as_numbers) <= 1e-5


def test_layers_that_are_not_sent_need_not_be_there():
    received = state("houlsby", generator(13))
    trained = shuffled_state("houlsby", noisy(received, generator(14)), generator(15))
    (place,) = PLACES[2:]
    part = {key: tensor for key, tensor in trained.items() if key.startswith(place)}
    sent = align_upload(part, received, ANCHORED)
    whole = align_upload(trained, received, ANCHORED)
    assert sent.keys() == part.keys()
    assert all(torch.equal(at(sent, place)[name], tensor) for name, tensor in at(whole, place).items())


def test_the_server_does_not_move_what_sites_have_aligned():
    sent = [state("houlsby", generator(k)) for k in range(3)]
    merged, report = integrate(sent, COUNTS, ANCHORED)
    average, expected = integrate(sent, COUNTS, PIASettings(server=False))
    assert same_bytes(merged, average)
    assert report == expected


def test_another_width_is_refused_by_name():
    with pytest.raises(FedpeftError, match=r"site slake has 8 neurons in layer\.0\.attention, the global adapter 16"):
        align_upload(state("houlsby", generator(0), width=8), state("houlsby", generator(1)), ANCHORED, site="slake")


def test_a_diverged_adapter_is_refused_by_name():
    trained = state("houlsby", generator(0))
    trained["layer.0.output.up.bias"][0] = float("nan")
    with pytest.raises(FedpeftError, match=r"site slake has NaN or infinity in layer\.0\.output\.up\.bias"):
        align_upload(trained, state("houlsby", generator(1)), ANCHORED, site="slake")


def test_aligning_at_the_site_and_not_at_all_contradict_each_other():
    with pytest.raises(FedpeftError, match="aligned_at is 'site', but server=False"):
        PIASettings(server=False, aligned_at="site")
