# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Components, filters and guards that FLARE loads.

Outside this folder only `workspace` and `doctor.allow_list` import nvflare, for its log configuration and its default
list of classes; `simulate` runs its simulator in a process of its own.
"""
