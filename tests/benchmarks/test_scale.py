# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""scale.py: what is computed follows from the constants, and the constants can be measured."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"
TINY = {"adapter": "houlsby", "settings": {"reduction_factor": 2}, "hidden_size": 16}


@pytest.fixture
def scale(benchmark):
    return benchmark("scale")


@pytest.fixture
def costs(scale):
    return scale.Costs(size=100, frames=5, sent=220, wall=1.0, processor=0.5, summing=0.25, peak=300, adding=0.3)


def test_ten_times_the_sites_are_ten_times_the_work_of_the_server(scale, costs):
    network = scale.Network()
    few, many = (scale.at_server(costs, sites, network) for sites in (10, 100))
    for field in ("connections", "messages", "sent", "network", "processor"):
        assert getattr(many, field) == pytest.approx(10 * getattr(few, field))
    assert many.memory - few.memory == 90 * costs.size


def test_relays_that_forward_take_nothing_off_the_server_but_each_carries_its_bytes_twice(scale, costs):
    relay = scale.at_relay(costs, 1_000, scale.Network())
    assert relay.sent == 2 * scale.SITES_OF_RELAY * costs.sent
    assert relay.connections == scale.SITES_OF_RELAY + 1


@pytest.fixture
def bare(scale):
    return scale.Costs(size=0, frames=2, sent=10, wall=0.1, processor=0.01, summing=0.0, peak=0, adding=0.0)


def test_with_partial_sums_adapters_cost_the_server_as_much_as_there_are_relays(scale, costs, bare):
    network = scale.Network()
    few, many = (scale.with_partial_sums(costs, bare, sites, network)[0] for sites in (1_000, 10_000))
    for field in ("connections", "messages", "sent", "network", "processor"):
        assert getattr(many, field) == pytest.approx(10 * getattr(few, field))
    assert many.memory == few.memory
    every = scale.at_server(costs, 10_000, network)
    assert many.sent == pytest.approx(10_000 * bare.sent + every.sent / scale.SITES_OF_RELAY * 1.5)


def test_a_relay_keeps_adapters_on_its_disk_where_they_are_large_together(scale, costs, bare):
    network = scale.Network()
    small, large = (
        scale.with_partial_sums(replace(costs, size=size, peak=size), bare, 1_000, network)[1]
        for size in (10**6, 10**7)
    )
    assert (small.memory - scale.IDLE_RELAY, small.disk) == (pytest.approx(103 * 10**6), 0)
    assert (large.memory - scale.IDLE_RELAY, large.disk) == (pytest.approx(3 * 10**7), 10**9)


def test_a_faster_network_leaves_the_processor(scale, costs):
    slow, fast = (scale.at_server(costs, 10, scale.Network(server_gbit=speed)) for speed in (1, 10))
    assert slow.network == pytest.approx(10 * fast.network)
    assert slow.processor == fast.processor
    large = replace(fast, network=0.0)
    assert scale.round_seconds(costs, large, scale.Network(site_mbit=1)) == pytest.approx(220 * 8 / 1e6 + 7.5)


def test_the_page_has_the_tables_that_the_command_prints(scale, capsys):
    scale.main([])
    printed = capsys.readouterr().out
    page = PAGE.read_text()
    blocks = re.findall(r"```console\n\$ python benchmarks/scale\.py\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 1
    assert [line.rstrip() for line in blocks[0].splitlines()] == [line.rstrip() for line in printed.splitlines()]


@pytest.mark.slow
@pytest.mark.usefixtures("warm_python")
def test_the_constants_are_measured(scale):
    costs, idle = scale._measured(TINY)
    assert costs.size == 12 * 2 * (8 * 16 * 2 + 8 + 16) * 4
    assert 2 * costs.size < costs.sent < 8 * costs.size
    assert costs.frames > 0
    assert idle >= 0
    assert costs.summing > 0
    assert costs.adding > 0
