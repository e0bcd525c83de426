# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Lists of what there is to choose from: methods with their parameters in a backbone, backbones, and papers' tasks."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fedpeft import backbones
from fedpeft.backbones.structure import family_of, layer_stacks, model_roles, stream_width
from fedpeft.core.console import cell
from fedpeft.core.metrics import title_of
from fedpeft.job.catalog import PaperTask, entries
from fedpeft.methods.aggregations import default_aggregation

JOBS = (
    "The first job of a task is embedded and runs anywhere; jobs/paper/ has the published recipe, on real data. "
    "FedPIA is read as two branches there."
)
OWN_WORDS = "Read the owners' own terms before you use their data."
NAME, NUMBER, RANGE, INDENT = 20, 13, 24, 4  # widths of the list of methods, which fits into 80 columns
NOTE = (
    "Parameters with the settings that a composed job has with this backbone unless it sets others: the methods' "
    "defaults, or what the backbone declares. Without the head, which every method trains at its site, and "
    "without the matrix of backbone.projection=trained."
)


def method_list(backbone: str, source: str | None = None) -> Group:
    """Return each method with its parameters and aggregation, and below them what it can do, and its paper.

    If a method does not fit the backbone, its row has the reason.
    """
    declared = backbones.BACKBONES.get(backbone).method_settings
    head = f"{'name':<{NAME}} {'trained':>{NUMBER}}  {'exchanged':<{RANGE}} aggregation"
    lines: list[RenderableType] = [Text(f"methods in {source or backbone}", "italic"), Text(head, "bold")]
    for entry in entries(backbones.skeleton(backbone, source), declared):
        method = entry.method
        if entry.trained is None:
            lines += [Text(f"{entry.name:<{NAME}} does not fit"), _below(entry.misfit)]
            continue
        first = f"{entry.name:<{NAME}} {entry.trained:>{NUMBER},}  {entry.sent:<{RANGE}} {default_aggregation(method)}"
        lines += [Text(first), *map(_below, filter(None, (", ".join(entry.abilities), method.source)))]
    return Group(*lines, Text(f"\n{NOTE}"))


def _below(words: str) -> Padding:
    return Padding(Text(words, "dim"), (0, 0, 0, INDENT))


def source_tables(source: str, backbone: str) -> list[RenderableType]:
    """Return the stacks of layers of a model, the module of every role, and the methods in it; no weights are read.

    The source is a folder, a hub name, or the registered name of a backbone, whose default weights are meant;
    `backbone` is the registered name of what reads it.
    """
    named = source in backbones.names()
    backbone, read = (source, None) if named else (backbone, source)
    model = backbones.skeleton(backbone, read).model
    count = sum(parameter.numel() for parameter in model.parameters())
    title = f"{source}: {type(model).__name__}, family {family_of(model)}, {count:,} parameters"
    stacks = Table(box=None)
    layers_of = layer_stacks(model)
    stacks.add_column("stack of layers", no_wrap=True, min_width=max(map(len, layers_of), default=0))
    for head in ("layers", "width"):
        stacks.add_column(head, justify="right")
    for path, layers in layers_of.items():
        stacks.add_row(cell(path), str(len(layers)), str(stream_width(layers)))
    found = model_roles(model)
    roles = Table(title="roles", title_justify="left", box=None)
    roles.add_column("role", no_wrap=True)
    longest = max(map(len, found.values()), default=0)
    roles.add_column("module", no_wrap=True, min_width=longest)  # a path is copied as a whole
    for role, path in found.items():
        roles.add_row(role, cell(path))
    return [Text(title), stacks, roles, method_list(backbone, read)]


def backbone_table() -> Table:
    """Return one row for each backbone: layers and their width, parameters, family, default weights and paper."""
    table = Table(title="backbones", title_justify="left", box=None)
    table.add_column("name", no_wrap=True)
    for head in ("layers", "parameters"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("family, default weights, paper", overflow="fold")
    for name, pretrained in backbones.BACKBONES.usable():
        if not pretrained.default_source and not pretrained.sized:
            weights = "a job names a source (fedpeft backbones SOURCE)"
            table.add_row(name, "", "", _lines("any family", weights, pretrained.source))
            continue
        model = pretrained.without_weights()
        count = sum(parameter.numel() for parameter in model.parameters())
        weights = "with the package" if pretrained.tiny else pretrained.default_source or "a job names a folder"
        words = _lines(model.family, weights, pretrained.source)
        table.add_row(name, f"{model.num_layers}x{model.hidden_size}", f"{count:,}", words)
    return table


def task_tables(tasks: Sequence[PaperTask]) -> list[RenderableType]:
    """Return one row for each task of the papers, and one for each data set that they need."""
    table = Table(title="tasks of the papers", title_justify="left", box=None, caption_justify="left", caption=JOBS)
    table.add_column("task", no_wrap=True)
    table.add_column("jobs, clients, and what they are measured by", overflow="fold")
    for task in tasks:
        data = ", ".join(origin.title for origin in task.origins)
        shared = f", shared out: {task.partition}" if task.partition else ""
        jobs = f"{f'jobs/{task.embedded}' if task.embedded else '-'}, jobs/{task.recipe}"
        table.add_row(task.title, f"{jobs}\n{_clients(task.sites)}\n{title_of(task.metrics)} on {data}{shared}")
    sources = Table(title="their data", title_justify="left", box=None, caption_justify="left", caption=OWN_WORDS)
    for head in ("data", "from", "terms"):
        sources.add_column(head, overflow="fold")
    for origin in dict.fromkeys(origin for task in tasks for origin in task.origins):
        sources.add_row(origin.title, origin.address.replace("`", ""), origin.terms)
    return [table, sources]


def _lines(*words: str) -> str:
    return "\n".join(filter(None, words))


def _clients(sites: Sequence[str]) -> str:
    """Return the number of sites and their names; of numbered sites only the first and the last."""
    numbered = [f"{sites[0].rstrip('0123456789')}{number}" for number in range(1, len(sites) + 1)]
    names = f"{sites[0]} to {sites[-1]}" if len(sites) > 1 and list(sites) == numbered else ", ".join(sites)
    return f"{len(sites)} clients: {names}"
