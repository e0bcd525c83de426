# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A plugin of fedpeft: what the adapter of `inner.py` declares. It is read everywhere, so it imports nothing heavy."""

from fedpeft.methods import bottleneck_adapter

INNER = bottleneck_adapter("fedpeft_example.inner:TUNING", label="inner adapters", source="this example")
