# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""One self-contained HTML page of a site's own data and of what its model answers; it stays at the site.

Pictures show how often each answer occurs in training and test, and the map of features. Tables of the test split show
how well each answer, class or label is recognized, and which are confused.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from fedpeft.core.files import replacing
from fedpeft.core.metrics import ENDS, TITLES, VALIDATION
from fedpeft.core.seeds import derive
from fedpeft.core.text import capitalized, counted
from fedpeft.data.images import as_array
from fedpeft.data.schema import Example
from fedpeft.inference.predictor import Prediction
from fedpeft.inference.site_subject import MIN_EXAMPLES, Subject, differ, has_projection, projected
from fedpeft.report.data_summary import counted_as
from fedpeft.report.loss_plot import BY_PROBE, BY_STEP, COURSE, TITLE, losses_by_site, panels_figure
from fedpeft.report.page_parts import Picture, embedded, figure, headline, laid_out, page_of, section
from fedpeft.report.palette import COLORS, DPI, LIGHT, drawn, shorten, svg, text_width
from fedpeft.report.tables import SHADES, Table
from fedpeft.report.wording import DASH, caution, percent
from fedpeft.site import site_state

MAX_BARS = 20
MARKS = ("o", "s", "^", "D", "v", "P")  # one for each color, for readers who do not tell colors apart
NO_LABEL, SEVERAL, OTHER = "no label", "several labels", "other"
MAX_LABEL_LENGTH = 24  # letters of an answer
SIZE = 7.5  # points
# inches
WIDTH, ROW, TOP, BOTTOM, EDGE = 8.0, 0.25, 0.32, 0.42, 0.14
MAP, LEGEND_ROW, COLUMNS = 4.2, 0.19, 3  # COLUMNS of the legend
MAX_ROWS = 30
MAX_CONFUSED = 10
MAX_LENGTH = 28  # letters of an answer
OTHERS = "others"
MAX_SIDE = 256  # pixels of an example's longest side
STYLE = """\
.examples { display: grid; grid-template-columns: repeat(auto-fill, minmax(10rem, 1fr)); gap: 1.25rem 1rem; }
.examples img { aspect-ratio: 1; object-fit: contain; background: #000000; }
.examples figcaption { color: var(--ink); }
.examples span { display: block; }
h3 { margin: 1.5rem 0 .5rem; font-size: .9375rem; }
"""


def distribution(train: Sequence[Example], test: Sequence[Example]) -> Figure:
    """Draw the share of the examples of both splits that have each of the most frequent answers or labels."""
    shares = [
        {name: count / len(examples) for name, count in Counter(n for e in examples for n in counted_as(e)).items()}
        for examples in (train, test)
    ]
    names = sorted({n for one in shares for n in one}, key=lambda n: (-sum(one.get(n, 0) for one in shares), n))
    shown = names[:MAX_BARS]

    texts = [shorten(name, MAX_LABEL_LENGTH) for name in shown]
    left = EDGE + 0.1 + max(text_width(text, SIZE) for text in texts)
    high = ROW * len(shown)
    total = TOP + high + BOTTOM
    figure = Figure(figsize=(WIDTH, total), dpi=DPI, facecolor=LIGHT.paper)
    axes = figure.add_axes((left / WIDTH, BOTTOM / total, (WIDTH - left - EDGE) / WIDTH, high / total))
    rows = np.arange(len(shown))
    for side, name, one, color in zip((-0.2, 0.2), ("training", "test"), shares, COLORS, strict=False):
        axes.barh(rows + side, [100 * one.get(n, 0) for n in shown], height=0.36, color=color, label=name)
    axes.set_yticks(rows, texts, fontsize=SIZE)
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.grid(axis="x", color=LIGHT.grid, linewidth=0.6)
    axes.set_xlabel("examples that have it (%)", labelpad=2)
    look: dict[str, Any] = {"frameon": False, "fontsize": SIZE, "borderaxespad": 0.2, "handlelength": 1}
    figure.legend(loc="upper right", ncols=2, **look)
    return figure


def others(train: Sequence[Example], test: Sequence[Example]) -> int:
    """Return how many answers or labels the picture of the distribution leaves out."""
    return max(0, len({name for example in (*train, *test) for name in counted_as(example)}) - MAX_BARS)


def feature_map(points: np.ndarray, examples: Sequence[Example]) -> Figure:
    """Draw the points (n, 2) of n examples, with color and shape of the most frequent answers or labels."""
    groups = [_group(example) for example in examples]
    frequent = [name for name, _ in sorted(Counter(groups).items(), key=lambda item: (-item[1], item[0]))]
    named = frequent[: len(COLORS)]

    rows = -(-(len(named) + (len(frequent) > len(named))) // COLUMNS)
    total = MAP + EDGE + LEGEND_ROW * rows + 0.1
    figure = Figure(figsize=(WIDTH, total), dpi=DPI, facecolor=LIGHT.paper)
    axes = figure.add_axes((EDGE / WIDTH, 1 - (EDGE + MAP) / total, (WIDTH - 2 * EDGE) / WIDTH, MAP / total))
    small = 16.0 if len(examples) <= 300 else 8.0
    rest = [group not in named for group in groups]
    for name, color, mark in zip(named, COLORS, MARKS, strict=False):
        own = [group == name for group in groups]
        x, y = points[own].T
        label = shorten(name, MAX_LABEL_LENGTH)
        axes.scatter(x, y, s=small, color=color, marker=mark, linewidth=0, alpha=0.85, label=label)
    if any(rest):
        label = f"{len(frequent) - len(named):,} {OTHER}"
        x, y = points[rest].T
        axes.scatter(x, y, s=0.6 * small, color=LIGHT.soft, linewidth=0, alpha=0.5, label=label)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(True)
    axes.spines[:].set_color(LIGHT.grid)
    figure.legend(loc="lower left", ncols=COLUMNS, frameon=False, fontsize=SIZE, handletextpad=0.2, borderaxespad=0.2)
    return figure


def _group(example: Example) -> str:
    if example.labels is None:
        return example.answer
    return SEVERAL if len(example.labels) > 1 else next(iter(example.labels), NO_LABEL)


def answered_as(prediction: Prediction) -> tuple[str, ...]:
    """Return the labels that were predicted, without those that are unknown, or the first answer.

    An accepted alternative counts as the first answer.
    """
    example = prediction.example
    if prediction.applies is not None:
        return tuple(label for label in prediction.applies if label not in example.unknown_labels)
    text = prediction.answers[0].text if prediction.answers else ""
    return (example.answer if prediction.accepts(text) else text,)


def recognized(
    head: str, train: Sequence[Example], predictions: Sequence[Prediction], thresholds: Mapping[str, float]
) -> Table:
    """Return a row for each answer or label: how often it occurs, how often it is predicted, and how well."""
    labelled = any(prediction.applies is not None for prediction in predictions)
    in_training = Counter(name for example in train for name in _own_labels(example))
    right, predicted, both = Counter[str](), Counter[str](), Counter[str]()
    for prediction in predictions:
        own, answers = _own_labels(prediction.example), answered_as(prediction)
        right.update(own)
        predicted.update(answers)
        both.update(name for name in answers if name in own)
    occurring = right | predicted | (in_training if labelled else Counter())
    names = sorted(occurring, key=lambda name: (-right[name], -predicted[name], name))
    rows = []
    for name in names[:MAX_ROWS]:
        counts = (in_training[name], right[name], predicted[name])
        shares = _shares(both[name], predicted[name], right[name])
        limit = thresholds.get(name)  # None of a label that the data have had since training
        threshold = (DASH if limit is None else f"{limit:.3g}",) if labelled else ()
        rows.append(
            (
                shorten(predictions[0].spelled(name), MAX_LENGTH) or NOTHING,
                *map(str, counts),
                *map(percent, shares),
                *threshold,
            )
        )
    columns = (head, "train", "test", "predicted", "precision (%)", "recall (%)", "F1 (%)")
    more = len(names) - len(rows)
    marks = [
        "Train, test: examples that have it",
        "precision: how many of those predicted have it, recall: how many of those that have it are predicted, "
        "F1: their harmonic mean",
        f"{DASH} none to count" * any(DASH in row for row in rows),
        f"{DASH} as threshold: the model does not know the label" * (labelled and any(row[-1] == DASH for row in rows)),
        f"{more:,} more are not shown, none more frequent in the test split" * bool(more),
    ]
    return Table(
        title=f"By {head}",
        columns=(*columns, "threshold") if labelled else columns,
        rows=tuple(rows),
        marks="; ".join(filter(None, marks)),
        averages=0,
    )


def confusion(head: str, predictions: Sequence[Prediction]) -> Table:
    """Count which answers the examples of each frequent answer or class get; columns are numbered as the rows."""
    pairs = Counter((p.example.answer, answered_as(p)[0]) for p in predictions)
    right = Counter(p.example.answer for p in predictions)
    names = [name for name, _ in sorted(right.items(), key=lambda item: (-item[1], item[0]))][:MAX_CONFUSED]
    places = {name: number for number, name in enumerate(names)}
    counts = [[0] * (len(names) + 1) for _ in range(len(names) + 1)]
    for (own, answer), count in pairs.items():
        counts[places.get(own, len(names))][places.get(answer, len(names))] += count
    numbers = [str(number) for number in range(1, len(names) + 1)]
    spelled = [shorten(predictions[0].spelled(name), MAX_LENGTH) for name in names]
    heads = [f"{number} {name}" for number, name in zip(numbers, spelled, strict=True)]
    shown = [(text, row) for text, row in zip([*heads, OTHERS], counts, strict=True) if any(row)]
    return Table(
        title="Confusion matrix",
        columns=(f"right {head}", *numbers, OTHERS),
        rows=tuple((text, *map(str, row)) for text, row in shown),
        marks=f"Test examples with the {head} of a row that get that of a column; darker: a larger part of the row"
        + f"; {OTHERS}: rarer ones together, so that its own field is no agreement" * (OTHERS in dict(shown)),
        averages=0,
        shades=tuple(tuple(_shade(count / sum(row)) for count in row) for _, row in shown),
    )


def _own_labels(example: Example) -> Sequence[str]:
    return counted_as(example) if example.labels is None else example.labels


def _shares(both: int, predicted: int, right: int) -> tuple[float | None, ...]:
    precision = both / predicted if predicted else None
    recall = both / right if right else None
    return precision, recall, 2 * both / (predicted + right) if right else None


def _shade(share: float) -> int:
    return SHADES - 1 - min(SHADES - 1, int(SHADES * share))


def write_page(out: Path, subject: Subject, *, examples: int) -> None:
    """Write a site's page, readable only for its own account, with up to `examples` images answered right and wrong."""
    text = page(subject, examples=examples)
    with replacing(out, private=True) as draft:
        draft.write_text(text, encoding="utf-8")


def page(subject: Subject, *, examples: int) -> str:
    """Return the page's HTML; see `write_page`."""
    record, data = subject.kept.record, subject.data
    head = "label" if record.labelled else "answer" if record.asks else "class"
    counts = "; ".join(f"{len(examples)} in {name}" for name, examples in data.splits().items() if examples)
    tested = counted(len(data.test), "test example")
    lead = f"{TITLES[record.metric]} on {tested} after round {subject.kept.state.round}"
    bars = drawn(lambda: distribution(data.train, data.test))
    shares = Picture(svg(bars, f"How often each {head} of site {record.site} occurs."))
    described = f"Bars of the share of training and test examples that have each {head}; a table below has the counts."
    sections = [
        section(f"How often each {head} occurs", figure(shares, described) + _left_out(data.train, data.test)),
        *_tables(subject, head),
        section("Map of the features", _map(subject, head)),
        _losses(subject),
        _examples(subject, examples) if examples else "",
    ]
    return page_of(
        f"Site {record.site}: its own data and answers",
        f"Site {record.site}",
        f"{data.source}; {counts}",
        warnings=(_warning(record.site, examples), caution(procedural=record.procedural, tiny=record.tiny)),
        figures=headline(capitalized(lead), _figures(subject)),
        sections=sections,
        more_style=STYLE,
    )


def _warning(site: str, examples: int) -> str:
    shows = "images, questions and answers" if examples else "the answers, and how often each occurs, in the data"
    return f"this page shows {shows} of site {site}: it stays at the site"


def _figures(subject: Subject) -> dict[str, float | None]:
    parts = {name: value for name, value in subject.figures.items() if name != VALIDATION}
    return {name: value for name, value in parts.items() if value is not None or name == "overall"}


def _left_out(train: Sequence[Example], test: Sequence[Example]) -> str:
    more = others(train, test)
    said = f"Not shown: {more:,} more, none of which occurs more often than those shown."
    return f'<p class="caption">{said}</p>' if more else ""


def _tables(subject: Subject, head: str) -> Iterator[str]:
    table = recognized(head, subject.data.train, subject.predictions, subject.thresholds)
    yield section(table.title, laid_out(table))
    if not subject.kept.record.labelled:
        table = confusion(head, subject.predictions)
        yield section(table.title, laid_out(table))


def _losses(subject: Subject) -> str:
    """Return the section of the losses of every round; empty if the run did not measure them."""
    record, courses = subject.kept.record, subject.kept.state.losses
    if courses:
        missed = np.full(len(next(iter(courses.values()))), np.nan)
        names = map(site_state.course_name, range(1, subject.kept.state.round + 1))
        losses = {record.site: np.stack([courses[name].numpy() if name in courses else missed for name in names])}
        title, points, caption = COURSE, "in the course", BY_STEP
    else:
        by_number = {int(one["round"] or 0): one for one in record.rounds}
        every = [by_number.get(number, {}) for number in range(1, max(by_number, default=0) + 1)]
        losses = losses_by_site(*([{record.site: one.get(name)} for one in every] for name in ENDS))
        title, points, caption = TITLE, "at the start and the end", BY_PROBE
    if not losses:
        return ""
    drawing = svg(panels_figure({"": losses}, title=title), f"Losses of site {record.site} {points} of every round.")
    described = f"A line through the losses {points} of every round."
    return section("Losses by round", figure(Picture(drawing, caption=caption), described))


def _map(subject: Subject, head: str) -> str:
    count = len(subject.mapped)
    if subject.features is None:
        return "<p>This model writes its answers: it has no one vector for an example.</p>"
    if count < MIN_EXAMPLES:
        return f"<p>A map needs {MIN_EXAMPLES} test examples, and there are {count}.</p>"
    if not has_projection():
        return "<p>A map needs scikit-learn: <code>pip install 'flare-fedpeft[inspect]'</code>.</p>"
    if not differ(subject.features):
        return "<p>There is no map: the features of all examples are equal, or some are no numbers.</p>"
    points = projected(subject.features)
    text = f"t-SNE of the features of {count} test examples, by their right {head}"
    picture = Picture(svg(drawn(lambda: feature_map(points, subject.mapped)), f"{text}."))
    some = f", of {len(subject.data.test):,}" if count < len(subject.data.test) else ""
    note = f"{text}{some}. Only nearness has a meaning, not the axes or how far groups are apart."
    described = f"{text}: examples that the model holds for alike lie near each other."
    return f'{figure(picture, described)}<p class="caption">{note}</p>'


def _examples(subject: Subject, count: int) -> str:
    rng = np.random.default_rng(derive(0, "inspect", subject.kept.record.site))
    parts = []
    for title, right in (("Answered right", True), ("Answered wrong", False)):
        those = [one for one in subject.predictions if one.right is right]
        places = sorted(rng.choice(len(those), min(count, len(those)), replace=False).tolist())
        cards = "\n".join(_card(those[place]) for place in places)
        shown = f'<div class="examples">{cards}</div>' if cards else "<p>None.</p>"
        parts.append(f"<h3>{title}: {len(places)} of {len(those)}</h3>\n{shown}")
    return section("Examples", "\n".join(parts))


NOTHING = "(nothing)"  # a model that writes may write nothing


def _card(prediction: Prediction) -> str:
    example = prediction.example
    image = Image.fromarray(as_array(example.image))  # without what else the file says
    image.thumbnail((MAX_SIDE, MAX_SIDE))
    file = io.BytesIO()
    image.save(file, format="PNG")
    own, predicted = (
        ", ".join(map(prediction.spelled, names)) or ("no label" if example.labels is not None else NOTHING)
        for names in ((example.answer,) if example.labels is None else example.labels, answered_as(prediction))
    )
    lines = [example.question, f"right: {own}", f"predicted: {predicted}{_probability(prediction)}", example.image_id]
    shown = "".join(f"<span>{escape(line)}</span>" for line in lines if line)
    return (
        f'<figure><img src="{embedded(file.getvalue(), "png")}" alt="{escape(example.image_id)}">'
        f"<figcaption>{shown}</figcaption></figure>"
    )


def _probability(prediction: Prediction) -> str:
    return "" if prediction.applies is not None else f" ({prediction.answers[0].probability:.2f})"
