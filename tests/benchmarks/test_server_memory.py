# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""server_memory.py: a job whose replies go through FLARE's cells."""

import pytest


@pytest.mark.slow
@pytest.mark.consortium
def test_all_replies_of_a_job_are_taken_and_nothing_is_left_on_the_disk(benchmark):
    server_memory = benchmark("server_memory")
    method = server_memory.METHODS["fixed_point"]
    found = server_memory.measure(method, sites=2, megabytes=1, rounds=1, disk=True)
    assert not found["rejected"]
    assert not found["left"]
    assert found["peak"] > found["before"]
