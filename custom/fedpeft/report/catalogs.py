# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Tables of what there is to choose from: methods with their parameters in a backbone, and backbones."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from fedpeft import backbones
from fedpeft.backbones.structure import family_of, layer_stacks, model_roles, stream_width
from fedpeft.methods.catalog import entries

NOTE = "Parameters with the default settings, without the head, which every method trains at its site."


def method_table(backbone: str, source: str | None = None) -> Table:
    """Return one row for each method: parameters, aggregation, what it can do, and its paper.

    Args:
        backbone: registered name.
        source: of its configuration; None: the usual one.

    Raises:
        FedpeftError: the backbone is unknown, or the source cannot be read.
    """
    table = Table(
        title=f"methods in {source or backbone}", caption=NOTE, caption_justify="left", title_justify="left", box=None
    )
    table.add_column("name", no_wrap=True)
    for head in ("trained", "exchanged"):
        table.add_column(head, justify="right")
    for head in ("aggregation", "can do", "source"):
        table.add_column(head)
    for entry in entries(backbones.skeleton(backbone, source)):
        counts = [entry.misfit, ""] if entry.trained is None else [f"{entry.trained:,}", f"{entry.exchanged:,}"]
        abilities = ", ".join(entry.abilities)
        table.add_row(entry.name, *counts, entry.method.aggregation, abilities, entry.method.source)
    return table


def source_tables(source: str, backbone: str) -> list[RenderableType]:
    """Return the stacks of layers of a model, the module of every role, and the methods in it; no weights are read.

    Args:
        source: a folder, a hub name, or the registered name of a backbone, whose default weights are meant.
        backbone: registered name of what reads it.

    Raises:
        FedpeftError: the source cannot be read.
    """
    named = source in backbones.names()
    backbone, read = (source, None) if named else (backbone, source)
    model = backbones.skeleton(backbone, read).model
    count = sum(parameter.numel() for parameter in model.parameters())
    title = f"{source}: {type(model).__name__}, family {family_of(model)}, {count:,} parameters"
    stacks = Table(box=None)
    for head in ("stack of layers", "layers", "width"):
        stacks.add_column(head, justify="left" if head == "stack of layers" else "right")
    for path, layers in layer_stacks(model).items():
        stacks.add_row(path, str(len(layers)), str(stream_width(layers)))
    roles = Table(title="roles", title_justify="left", box=None)
    roles.add_column("role", no_wrap=True)
    roles.add_column("module", overflow="fold")
    for role, path in model_roles(model).items():
        roles.add_row(role, path)
    return [Text(title), stacks, roles, method_table(backbone, read)]


def backbone_table() -> Table:
    """Return one row for each backbone: family, layers, width, parameters and default weights."""
    table = Table(title="backbones", title_justify="left", box=None)
    for head in ("name", "family", "layers", "width", "parameters", "default weights"):
        table.add_column(head, justify="right" if head in ("layers", "width", "parameters") else "left")
    for name, pretrained in backbones.BACKBONES.usable():
        if not pretrained.usual and not pretrained.sized:
            table.add_row(name, "any", "", "", "", "none: a job names a source (fedpeft backbones SOURCE)")
            continue
        model = pretrained.without_weights()
        count = sum(parameter.numel() for parameter in model.parameters())
        weights = "with the package" if pretrained.tiny else pretrained.usual or "none: a job names a folder"
        table.add_row(name, str(model.family), str(model.num_layers), str(model.hidden_size), f"{count:,}", weights)
    return table
