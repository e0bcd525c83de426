# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Predictions as CSV, and as a table on the terminal."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich import box
from rich.table import Table

from fedpeft.answering.answering import Scored
from fedpeft.core.console import cell
from fedpeft.core.files import replacing
from fedpeft.core.text import csv_cell
from fedpeft.inference.predictor import Prediction

SHOWN = 20  # rows of a table on the terminal

COLUMNS = ("image", "question", "answer", "right", "predicted")  # that every table begins with


def may_be_replaced(file: Path) -> bool:
    """Return whether a file is not there, empty, or a table that `write_csv` wrote and no site reads as its data."""
    if not file.is_file():
        return True
    from fedpeft.data.manifest import FILES

    with file.open("rb") as table:
        begins = table.readline(1000)
    return file.name.lower() not in FILES and (not begins or begins.startswith(",".join(COLUMNS).encode()))


def write_csv(file: Path, predictions: Sequence[Prediction], *, max_answers: int) -> None:
    """Write one row for each prediction of one model; an earlier file is replaced, and its folder created.

    A row has `max_answers` answers; each label has a column with its probability, in the order of its name.
    """
    labelled = bool(predictions) and predictions[0].applies is not None
    rows = list(map(_labels if labelled else _answers, predictions))
    columns = list(COLUMNS)
    if labelled:
        columns += sorted(_column(predictions[0], label) for label in predictions[0].answers)
    else:
        columns += ["probability"]
        columns += [f"{name}_{rank}" for rank in range(2, max_answers + 1) for name in ("predicted", "probability")]
    with replacing(file, private=True) as draft, draft.open("w", encoding="utf-8", newline="") as out:
        writer = csv.DictWriter(out, columns, restval="")
        writer.writerow({name: csv_cell(name) for name in columns})
        for row in rows:
            writer.writerow({name: csv_cell(value) for name, value in row.items()})


def answer_table(prediction: Prediction, thresholds: Mapping[str, float], max_answers: int) -> Table:
    """Return the answers, or labels, of one example with their probabilities.

    Of labels it has `max_answers` rows, and all that apply.
    """
    labelled = prediction.applies is not None
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("label" if labelled else "answer", overflow="fold")
    table.add_column("probability", justify="right")
    if labelled:
        table.add_column("threshold", justify="right")
        table.add_column("applies")
    for rank, scored in enumerate(prediction.answers):
        cells = [prediction.spelled(scored.text), f"{scored.probability:.3f}"]
        if labelled:
            applies = scored.text in (prediction.applies or ())
            if rank >= max_answers and not applies:
                continue
            cells += [f"{thresholds[scored.text]:.3g}", "yes" if applies else "no"]
        table.add_row(*map(cell, cells))
    return table


def overview(predictions: Sequence[Prediction]) -> Table:
    """Return the first answer, or the labels, of the first examples."""
    known = any(prediction.known for prediction in predictions)
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("image", "question", "predicted"):
        table.add_column(name, overflow="fold")
    table.add_column("probability", justify="right")
    if known:
        table.add_column("answer", overflow="fold")
        table.add_column("right")
    for prediction in predictions[:SHOWN]:
        row = (_labels if prediction.applies is not None else _answers)(prediction)
        chosen = prediction.answers[:1]
        if prediction.applies is not None:
            chosen = sorted(scored for scored in prediction.answers if scored.text in prediction.applies)
        shown = "|".join(f"{scored.probability:.3f}" for scored in chosen)
        cells = [row["image"], row["question"], row["predicted"], shown]
        cells += [row["answer"], row["right"]] * known
        table.add_row(*(cell(value) for value in cells))
    return table


def _answers(prediction: Prediction) -> dict[str, str | float]:
    row = _common(prediction, prediction.spelled(prediction.example.answer))
    for rank, scored in enumerate(prediction.answers, 1):
        end = f"_{rank}" if rank > 1 else ""
        row |= {f"predicted{end}": prediction.spelled(scored.text), f"probability{end}": _digits(scored.probability)}
    return row


def _labels(prediction: Prediction) -> dict[str, str | float]:
    row = _common(prediction, "|".join(map(prediction.spelled, prediction.example.labels or ())))
    return row | {
        "predicted": "|".join(map(prediction.spelled, prediction.applies or ())),
        **{_column(prediction, scored): _digits(scored.probability) for scored in prediction.answers},
    }


def _column(prediction: Prediction, label: Scored) -> str:
    return f"probability of {prediction.spelled(label.text)}"


def _common(prediction: Prediction, answer: str) -> dict[str, str | float]:
    example, right = prediction.example, prediction.right
    return {
        "image": example.image_id,
        "question": example.question,
        "answer": answer if prediction.known else "",
        "right": "" if right is None else "yes" if right else "no",
    }


def _digits(probability: float) -> float:
    return float(f"{probability:.6g}")
