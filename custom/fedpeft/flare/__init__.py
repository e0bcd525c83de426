# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Components, filters and guards that FLARE loads.

Outside this folder only `core.workspace` and `doctor.policies` import nvflare, for its log configuration and its
default list of classes; `run.simulate` and `run.recipe` run its simulator.
"""
