# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Tasks of installed packages, which add to those of `app_configs/tasks/`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedpeft.core.registry import Registry

TASKS: Registry[Mapping[str, Any]] = Registry("task", "fedpeft.tasks", Mapping)
