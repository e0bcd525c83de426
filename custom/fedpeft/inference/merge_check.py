# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Measure adapters, their plain mean and their merged form on labelled data, with the heads of their exports.

The loss along the line between two adapters shows why alignment helps: without it the loss rises in between.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import rich.table
import torch
from matplotlib.figure import Figure
from rich import box

from fedpeft.alignment.client_pia import align_global
from fedpeft.alignment.low_rank import merge_products
from fedpeft.alignment.settings import PIASettings
from fedpeft.core.console import cell
from fedpeft.core.errors import FedpeftError
from fedpeft.core.files import read_json
from fedpeft.core.metrics import TITLES
from fedpeft.core.states import State
from fedpeft.core.text import capitalized, one_line
from fedpeft.data.answers import AnswerVocabulary
from fedpeft.data.folder_sites import sites_in
from fedpeft.data.manifest import FILES
from fedpeft.data.schema import Example
from fedpeft.inference.examples import read_table
from fedpeft.inference.exported import is_exported
from fedpeft.inference.kept_model import KeptModel, find
from fedpeft.inference.merging import Adapter, Merged, merged_of, peft_tensors
from fedpeft.inference.predictor import Predictor
from fedpeft.methods import METHODS
from fedpeft.methods.adapters import own_key, tuning_of
from fedpeft.report.page_parts import Picture, figure, laid_out, page_of, section
from fedpeft.report.palette import LIGHT, drawn, line_style, svg
from fedpeft.report.tables import Table
from fedpeft.report.wording import caution, percent
from fedpeft.site import computing
from fedpeft.site.loop import mean_loss
from fedpeft.site.metrics import Measured
from fedpeft.site.site_state import RECORD

POINTS = tuple(k / 8 for k in range(9))
MAX_QUESTIONS = 96  # of the line
FORMS = ("own adapter", "plain mean", "merged")
AS_THEY_COME, ALIGNED = "as they come", "merged on the way"
PAGE = "check.html"


@dataclass(frozen=True, kw_only=True)
class Checked:
    """The results of `measure_all`."""

    table: Table  # a row for each export: its own adapter, the plain mean, the merged one
    # way -> losses at `POINTS` between the first two exports, with the first one's head
    lines: Mapping[str, Sequence[float]]
    between: tuple[str, str]  # the names of the first two exports
    note: str  # what the figures do not say
    remarks: tuple[str, ...] = ()  # folders that were not measured, a sentence each

    def barriers(self) -> dict[str, float]:
        """Return how far each line rises above the straight one between its ends."""
        return {way: barrier(losses) for way, losses in self.lines.items()}


def measure_all(
    adapters: Sequence[Adapter],
    merged: Merged,
    data: Path,
    *,
    weights: Sequence[float] | None = None,
    backbone: str | None = None,
    image_backbone: str | None = None,
    say: Callable[[str], object] = lambda line: None,
) -> Checked:
    """Measure adapters before and after they are merged; those of an exported folder, with its head.

    `data` is a table as `fedpeft predict --manifest` reads it, or a folder in a layout of the data registry; `backbone`
    and `image_backbone` the exports' ones, where they are not the default; `weights` are of the plain mean. `say` gets
    a line for each adapter that was measured, and one before the loss along the line.
    """
    exports = [one for one in adapters if is_exported(Path(one.name))]
    without = [one for one in adapters if not is_exported(Path(one.name))]
    if not exports:
        raise FedpeftError("--check needs a head, and no folder is of fedpeft export: name at least one that is.")
    plain = _plain_mean(adapters, weights)
    kepts = [find(Path(one.name), site=None, backbone=backbone, image_backbone=image_backbone) for one in exports]
    record = kepts[0].record  # by whose metric all are measured
    kepts = [replace(kept, record=replace(kept.record, metric=record.metric)) for kept in kepts]
    rows: list[tuple[str, ...]] = []
    values: list[list[float | None]] = []
    for kept, one, name in zip(kepts, exports, _short_names([one.name for one in exports]), strict=True):
        examples, measured = examples_of(data, kept), []
        for way, form in zip(FORMS, (_unmerged(one), plain, merged), strict=True):
            measured.append(None if form is None else _measured(_with_adapter(kept, form), examples))
            if form is not None:
                say(f"measured {percent(measured[-1])} %: {way}, head of {name}, {len(examples):,} examples")
        values.append(measured)
        rows.append((name, *map(percent, measured)))
    if len(rows) > 1:
        rows.append(("mean", *map(percent, map(_mean, zip(*values, strict=True)))))
    names = [row[0] for row in rows]
    lines, remarks = {}, [f"skipped  {one.name}: it is no export, and has no head" for one in without]
    if len(exports) > 1 and not (_holds(exports[0], exports[1]) or _holds(exports[1], exports[0])):
        remarks.append(f"skipped  the loss on the way: each of {names[0]} and {names[1]} is wider somewhere")
    elif len(exports) > 1:
        say(f"next     the loss from {names[0]} to {names[1]}")
        lines = _lines(exports[0], exports[1], kepts[0], examples_of(data, kepts[0]))
    return Checked(
        table=Table(
            title=f"{TITLES[record.metric]} (%) with each folder's own head",
            columns=("head of", *FORMS),
            rows=tuple(rows),
            averages=int(len(rows) > 1),
        ),
        lines=lines,
        between=(names[0], names[min(1, len(names) - 1)]),
        note=caution(procedural=record.procedural, tiny=record.tiny),
        remarks=tuple(remarks),
    )


def _short_names(folders: Sequence[str]) -> list[str]:
    """Return the shortest end of each path that tells the folders apart."""
    paths = [Path(folder).parts for folder in folders]
    for count in range(1, max(map(len, paths)) + 1):
        ends = ["/".join(parts[-count:]) for parts in paths]
        if len(set(ends)) == len(ends):
            break
    return [one_line(end, max_length=40) for end in ends]


def examples_of(data: Path, kept: KeptModel) -> tuple[Example, ...]:
    """Return the labelled examples of a folder or table; the model must know some of their answers."""
    if data.is_file() or any((data / name).is_file() for name in FILES):
        wanted = read_table(data, kept)
        examples = tuple(one for one, known in zip(wanted.examples, wanted.known, strict=True) if known)
    else:
        splits = (split for site in sites_in(data, window=kept.record.window).data for split in site.splits().values())
        examples = tuple(one for split in splits for one in split)
    record, vocabulary = kept.record, AnswerVocabulary(kept.record.answers)
    if record.labelled:
        known = set(record.answers)
        fits = [
            _known_labels(one, known) for one in examples if one.labels is not None and known.issuperset(one.labels)
        ]
    else:
        fits = [one for one in examples if one.labels is None and bool(one.question) is record.asks]
        fits = fits if any(vocabulary.accepted(one) for one in fits) else []
    if not fits:
        raise FedpeftError(f"{data} holds no example with an answer of the model in {kept.folder}: name other data.")
    return tuple(fits)


def _known_labels(example: Example, known: Collection[str]) -> Example:
    """Return an image without unknown labels that the model has no output for."""
    return replace(example, unknown_labels=tuple(label for label in example.unknown_labels if label in known))


def barrier(losses: Sequence[float]) -> float:
    """Return how far a line of losses at `POINTS` rises above the straight one between its ends."""
    ends = [(1 - t) * losses[0] + t * losses[-1] for t in POINTS]
    return max(loss - end for loss, end in zip(losses, ends, strict=True))


def report_lines(checked: Checked) -> Iterator[Any]:
    """Yield the table and the lines below it for the terminal."""
    shown = rich.table.Table(title=checked.table.title, title_justify="left", box=box.SIMPLE_HEAD)
    for number, head in enumerate(checked.table.columns):
        shown.add_column(head, justify="right" if number else "left")
    for row in checked.table.rows:
        shown.add_row(*map(cell, row))
    yield shown
    for way, height in checked.barriers().items():
        yield f"barrier  {height:.3f} {way}, from {checked.between[0]} to {checked.between[1]}"
    yield from (f"note     {checked.note}",) * bool(checked.note)
    yield from checked.remarks


def page(checked: Checked, title: str, command: str) -> str:
    """Return a page with the table and the picture."""
    a, b = checked.between
    parts = [section(capitalized(checked.table.title), laid_out(checked.table))]
    if checked.lines:
        heights = "; ".join(f"{way} {height:.3f}" for way, height in checked.barriers().items())
        shown = Picture(svg(drawn(lambda: _figure(checked)), title), caption=f"Barrier: {heights}.")
        described = f"Curves of the loss from the adapter of {a} to that of {b}. Barrier: {heights}."
        parts.append(section(f"Loss from {a} to {b}, with the head of {a}", figure(shown, described)))
    return page_of(f"{title}: merged adapters", title, command, sections=parts, warnings=filter(None, (checked.note,)))


def _figure(checked: Checked) -> Figure:
    figure = Figure(figsize=(7.2, 2.7), facecolor=LIGHT.paper, layout="constrained")
    axes = figure.subplots()
    for number, (way, losses) in enumerate(checked.lines.items()):
        axes.plot(POINTS, losses, label=way, **line_style(number, len(checked.lines)))
    axes.set_xticks([0, 0.5, 1], [checked.between[0], "half", checked.between[1]])
    axes.set_ylabel("loss")
    axes.grid(axis="y", color=LIGHT.grid, linewidth=0.6)
    axes.legend(frameon=False, fontsize=7.5)
    return figure


def _plain_mean(adapters: Sequence[Adapter], weights: Sequence[float] | None) -> Merged | None:
    shapes = [{key: tensor.shape for key, tensor in one.state.items()} for one in adapters]
    return merged_of(adapters, weights, plain=True) if all(one == shapes[0] for one in shapes) else None


def _unmerged(adapter: Adapter) -> Merged:
    settings = adapter.tuning.merged_settings(adapter.config, adapter.state)
    return Merged(config=adapter.config, state=adapter.state, paths=adapter.paths, settings=settings)


def _with_adapter(kept: KeptModel, form: Merged) -> KeptModel:
    """Return a site's model with another adapter, of any width."""
    tuning, state = tuning_of(form.config), _site_state(kept, form)
    method = kept.record.sections["method"]
    settings = {**method["settings"].get(method["name"], {}), **tuning.merged_settings(form.config, state)}
    sections: dict[str, Any] = {
        **kept.record.sections,
        "method": {**method, "settings": {**method["settings"], method["name"]: settings}},
    }
    changed = replace(kept.state, adapter=state, trained={}, beside={})
    return replace(kept, state=changed, record=replace(kept.record, sections=sections))


def _site_state(kept: KeptModel, form: Merged) -> State:
    """Return the tensors of an adapter under the keys of a site's model."""
    tuning = tuning_of(form.config)
    templates = tuning.templates(form.config, read_json(kept.folder / RECORD)["family"])
    return {own_key(key, templates, tuning): tensor for key, tensor in peft_tensors(form).items()}


def _measured(kept: KeptModel, examples: Sequence[Example]) -> float | None:
    predictor = Predictor(kept)
    vocabulary = AnswerVocabulary(kept.record.answers)
    measure = predictor.measure(0 if kept.record.labelled else vocabulary.unseen_classes(examples))
    for _ in predictor.predictions(examples, [True] * len(examples), max_answers=1, measure=measure):
        pass
    figures: Measured = measure.figures()
    return figures["overall"]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def _holds(one: Adapter, other: Adapter) -> bool:
    """Return whether the neurons of another adapter fit into this one; products of any rank do."""
    products = METHODS.get(one.tuning.name).products
    return products or all(tensor.numel() >= other.state[key].numel() for key, tensor in one.state.items())


def _lines(one: Adapter, other: Adapter, kept: KeptModel, examples: Sequence[Example]) -> dict[str, list[float]]:
    """Return way -> losses from one adapter to another; the narrower one is spread over the neurons of the other."""
    ways: dict[str, list[State]] = {}
    base = one if _holds(one, other) else other
    if all(tensor.shape == other.state[key].shape for key, tensor in one.state.items()):
        ways[AS_THEY_COME] = [_between(one.state, other.state, t) for t in POINTS]
    if METHODS.get(one.tuning.name).products:
        inner = [merge_products([one.state, other.state], [1 - t, t]) for t in POINTS[1:-1]]
        ways[ALIGNED] = [one.state, *inner, other.state]
    else:
        moved = other if base is one else one
        aligned, _ = align_global(moved.state, base.state, settings=PIASettings(support="weights"))
        ends = (base.state, aligned) if base is one else (aligned, base.state)
        ways[ALIGNED] = [_between(*ends, t) for t in POINTS]
    largest: dict[str, Any] = {}
    for state in (state for states in ways.values() for state in states):
        settings = base.tuning.merged_settings(base.config, state)
        largest = max((largest or settings, settings), key=lambda sizes: sizes.get("r", 0))
    forms = {
        way: [Merged(config=base.config, state=state, paths=base.paths, settings=largest) for state in states]
        for way, states in ways.items()
    }
    predictor = Predictor(_with_adapter(kept, forms[ALIGNED][0]))
    known = examples if kept.record.labelled else _with_known_answers(examples, AnswerVocabulary(kept.record.answers))
    batches = [batch.to(predictor.model.device) for batch in predictor.batches(known[:MAX_QUESTIONS])]
    return {way: [_loss(predictor, _site_state(kept, form), batches) for form in of] for way, of in forms.items()}


def _with_known_answers(examples: Iterable[Example], vocabulary: AnswerVocabulary) -> list[Example]:
    """Return the examples of which the model knows an accepted answer, with that as the answer of the loss."""
    return [replace(one, answer=vocabulary.class_of(one)) for one in examples if vocabulary.accepted(one)]


def _between(one: State, other: State, share: float) -> State:
    return {key: torch.lerp(tensor.float(), other[key].float(), share) for key, tensor in one.items()}


def _loss(predictor: Predictor, state: State, batches: Sequence[Any]) -> float:
    model = predictor.model
    model.trainable.load(state)
    with computing.shortcuts(model.backbone, model.training, model.features):
        return mean_loss(model.answering.eval(), batches)
