# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Tables of what there is to choose from: methods with their parameters in a backbone, and backbones."""

from __future__ import annotations

from rich.table import Table

from fedpeft import backbones
from fedpeft.methods.catalog import entries

NOTE = "Parameters with the default settings, without the head, which every method trains at its site."


def method_table(backbone: str) -> Table:
    """Return one row for each method: parameters, aggregation, what it can do, and its paper.

    Raises:
        FedpeftError: the backbone is unknown.
    """
    table = Table(title=f"methods in {backbone}", caption=NOTE, caption_justify="left", title_justify="left", box=None)
    table.add_column("name", no_wrap=True)
    for head in ("trained", "exchanged"):
        table.add_column(head, justify="right")
    for head in ("aggregation", "can do", "source"):
        table.add_column(head)
    for entry in entries(backbones.skeleton(backbone)):
        counts = [entry.misfit, ""] if entry.trained is None else [f"{entry.trained:,}", f"{entry.exchanged:,}"]
        abilities = ", ".join(entry.abilities)
        table.add_row(entry.name, *counts, entry.method.aggregation, abilities, entry.method.source)
    return table


def backbone_table() -> Table:
    """Return one row for each backbone: family, layers, width, parameters and default weights."""
    table = Table(title="backbones", title_justify="left", box=None)
    for head in ("name", "family", "layers", "width", "parameters", "default weights"):
        table.add_column(head, justify="right" if head in ("layers", "width", "parameters") else "left")
    for name, pretrained in backbones.BACKBONES.usable():
        model = pretrained.without_weights()
        count = sum(parameter.numel() for parameter in model.parameters())
        weights = "with the package" if pretrained.tiny else pretrained.usual
        table.add_row(name, str(model.family), str(model.num_layers), str(model.hidden_size), f"{count:,}", weights)
    return table
