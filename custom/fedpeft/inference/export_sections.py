# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What of a job's settings an exported model needs: those of its own site, without data and other sites' names."""

from __future__ import annotations

from typing import Any

from fedpeft.backbones import BackboneSettings
from fedpeft.core.settings import build
from fedpeft.inference.exported import OF_MACHINE
from fedpeft.job.federation import site_backbone
from fedpeft.methods.settings import MethodSettings
from fedpeft.site.model_record import ModelRecord


def exported_sections(record: ModelRecord) -> dict[str, Any]:
    """Return the sections of an exported folder."""
    sections = record.sections
    method = build(MethodSettings, sections["method"], section="method")
    own = site_backbone(sections["backbone"], record.site)
    backbone = build(BackboneSettings, own, section="backbone")
    kept = {name: value for name, value in sections["method"].items() if name not in ("settings", "site_settings")}
    return {
        "backbone": {"name": backbone.name, **own},
        "method": {**kept, "name": method.name, "settings": {method.name: method.settings_of(record.site)}},
        "training": {name: value for name, value in sections["training"].items() if name not in OF_MACHINE},
        "schedule": {},
    }
