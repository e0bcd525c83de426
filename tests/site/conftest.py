# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Learners on a backbone that is read once."""

import pytest
from copies import copied

from fedpeft import backbones


@pytest.fixture(scope="session", autouse=True)
def loaded_once(tiny_source):
    """A learner gets a copy of the tiny backbone; how it is read from its folder is tested in tests/backbones."""
    build, loaded = backbones.build, {}

    def once(settings, **options):
        if settings.source != tiny_source:
            return build(settings, **options)
        if (kind := repr(settings)) not in loaded:
            loaded[kind] = build(settings)
        return copied(loaded[kind])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backbones, "build", once)
        yield
