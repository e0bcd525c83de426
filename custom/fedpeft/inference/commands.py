# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The commands `fedpeft predict`, `export`, `inspect` and `merge`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpeft.core.errors import FedpeftError
from fedpeft.core.text import counted

if TYPE_CHECKING:
    from fedpeft.core.console import Console
    from fedpeft.inference.examples import Wanted
    from fedpeft.inference.predictor import Prediction, Predictor
    from fedpeft.site.metrics import Measured
    from fedpeft.site.site_state import ModelRecord


SPLITS = ("train", "validation", "test")
MAX_EXAMPLES = 50


def add_predict(commands: Any) -> None:
    """Add the command to the command line."""
    predict = commands.add_parser("predict", help="answer questions about images with a site's own model, at the site")
    predict.add_argument("run", type=Path, help="a workspace of fedpeft simulate, a site's workspace, or an export")
    predict.add_argument("--site", metavar="NAME", help="whose model; needed where a workspace has several sites")
    what = predict.add_mutually_exclusive_group(required=True)
    what.add_argument("--image", type=Path, action="append", metavar="PATH", help="an image, or a folder of pictures")
    what.add_argument(
        "--manifest", type=Path, metavar="PATH", help="a table of images, or its folder; see docs/data.md"
    )
    what.add_argument("--split", choices=SPLITS, help="a split of the site's own data")
    predict.add_argument("--question", metavar="TEXT", help="about the image, or about all images of the folder")
    predict.add_argument("--top", type=int, default=5, metavar="N", help="answers of each example (default 5)")
    predict.add_argument("--round", default="last", metavar="N", help="last (default), best by validation, or a number")
    predict.add_argument(
        "--adapter", metavar="PATH", help="with the site's head: 'global', a PEFT folder, or the server's result"
    )
    _add_backbones(predict)
    predict.add_argument("--out", type=Path, metavar="FILE.csv", help="write every prediction to a table")
    predict.add_argument("--heatmap", type=Path, metavar="FILE.png", help="draw what in the image spoke for the answer")
    predict.set_defaults(command=_predict)


def _add_backbones(command: argparse.ArgumentParser, *, of: str = "of an export") -> None:
    command.add_argument(
        "--backbone", metavar="PATH", help=f"{of}: folder or hub name, where the backbone is not the default one"
    )
    command.add_argument("--image-backbone", metavar="PATH", help="the same for the image encoder of an mmbt")


def _predict(arguments: argparse.Namespace) -> None:
    _check_predict(arguments)
    from fedpeft.core.console import Console
    from fedpeft.inference.examples import check_grays, read_images, read_split, read_table, window_at
    from fedpeft.inference.kept_model import find
    from fedpeft.inference.predictor import Predictor, find_adapter
    from fedpeft.inference.table import write_csv

    console = Console()
    chosen = {"backbone": arguments.backbone, "image_backbone": arguments.image_backbone}
    kept = find(arguments.run, site=arguments.site, round=arguments.round, **chosen)
    adapter = None if arguments.adapter is None else find_adapter(arguments.adapter, arguments.run)
    if arguments.image:
        wanted = read_images(arguments.image[0], arguments.question, kept.record, window=window_at(kept))
    elif arguments.manifest:
        wanted = read_table(arguments.manifest, kept)
    else:
        wanted = read_split(arguments.split, kept)
    check_grays(wanted, kept.record)
    if arguments.heatmap and len(wanted.examples) > 1:
        raise FedpeftError(f"--heatmap draws one image, and there are {len(wanted.examples)}: name one with --image.")
    predictor = Predictor(kept, adapter)
    remarks = (*wanted.remarks, *predictor.remarks(wanted.examples))
    predictions, figures = answered(predictor, wanted, max_answers=arguments.top, console=console)
    _print_answers(console, predictor, predictions, arguments.top, shown=arguments.out is None)
    for line in (*facts(kept.record, kept.state.round, figures, sum(wanted.known), adapter), *remarks):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if arguments.out:
        write_csv(arguments.out, predictions, max_answers=arguments.top)
        print(f"table    {arguments.out}")
    if arguments.heatmap:
        _draw_heatmap(arguments.heatmap, predictor, predictions[0])
        print(f"picture  {arguments.heatmap}")


def answered(
    predictor: Predictor, wanted: Wanted, *, max_answers: int, console: Console
) -> tuple[list[Prediction], Measured | None]:
    """Return the predictions, and the figures on the examples with known answers; None: there are none."""
    from rich.progress import track

    measure = predictor.measure(wanted.unseen, wanted.rare) if any(wanted.known) else None
    everything = measure if all(wanted.known) else None
    answers = predictor.predictions(wanted.examples, wanted.known, max_answers=max_answers, measure=everything)
    bar: dict[str, Any] = {"console": console, "transient": True, "disable": not console.is_terminal}
    predictions = list(track(answers, "predicting", len(wanted.examples), **bar))
    if measure and not everything:
        pairs = zip(wanted.examples, wanted.known, strict=True)
        known = [example for example, is_known in pairs if is_known]
        for _ in predictor.predictions(known, [True] * len(known), max_answers=1, measure=measure):
            pass
    return predictions, measure.figures() if measure else None


MAX_TOP = 1000  # answers of one example: each has two columns


def _check_predict(arguments: argparse.Namespace) -> None:
    """Refuse what cannot be done before anything is loaded."""
    from fedpeft.inference.table import may_be_replaced

    if not 1 <= arguments.top <= MAX_TOP:
        raise FedpeftError(f"--top is {arguments.top}, it must be from 1 to {MAX_TOP:,}.")
    if arguments.image and len(arguments.image) > 1:
        raise FedpeftError(
            f"--image is given {len(arguments.image)} times: name one image or folder, or list the images in a "
            f"table for --manifest."
        )
    if arguments.question is not None and not arguments.image:
        raise FedpeftError("--question belongs to --image; a table and a split have questions of their own.")
    if arguments.out and arguments.out.suffix.lower() != ".csv":
        raise FedpeftError(f"--out is {str(arguments.out)!r}, it must end in .csv.")
    if arguments.out and not may_be_replaced(arguments.out):
        raise FedpeftError(f"--out is {str(arguments.out)!r}, which is no table of predictions: name another file.")
    if arguments.heatmap and arguments.heatmap.is_file():
        raise FedpeftError(f"--heatmap is {str(arguments.heatmap)!r}, which is there already: name a new file.")
    from fedpeft.inference.exported import check_own_place

    for file in filter(None, (arguments.out, arguments.heatmap)):
        if file.is_dir():
            raise FedpeftError(f"{str(file)!r} is a folder: name a file.")
        check_own_place(file, holds="predictions show the site's answers and images")
    if arguments.heatmap:
        from fedpeft.inference.heatmap import check_file

        check_file(arguments.heatmap)


def _print_answers(
    console: Console, predictor: Predictor, predictions: Sequence[Prediction], max_answers: int, *, shown: bool
) -> None:
    from fedpeft.inference.table import SHOWN, answer_table, overview

    if len(predictions) == 1:
        console.print(answer_table(predictions[0], predictor.thresholds, max_answers))
    elif shown:
        console.print(overview(predictions))
        if len(predictions) > SHOWN:
            print(f"{len(predictions) - SHOWN} more: write all to a table with --out FILE.csv")


def facts(
    record: ModelRecord, round: int, figures: Measured | None, known: int, adapter: Path | None = None
) -> Iterator[str]:
    """Yield a line on the model and one on its figures, with the digits of the run's report."""
    from fedpeft.core.metrics import TITLES
    from fedpeft.report.wording import caution, percent

    note = caution(procedural=record.procedural, tiny=record.tiny)
    whose = f"{adapter} with what site {record.site} kept of round {round}" if adapter else ""
    yield f"model    {whose or f'site {record.site}, round {round}'}{'; ' * bool(note)}{note}"
    if figures and figures["overall"] is None:
        yield f"measured {TITLES[record.metric]}: not measured, of no class or label are enough images known here"
    elif figures:
        parts = [
            f"{name} {percent(value)} %" for name, value in figures.items() if value is not None and name != "overall"
        ]
        inner = f" ({', '.join(parts)})" if parts else ""
        yield f"measured {TITLES[record.metric]} {percent(figures['overall'])} %{inner} on {counted(known, 'example')}"


def _draw_heatmap(file: Path, predictor: Predictor, prediction: Prediction) -> None:
    from fedpeft.inference.heatmap import draw, evidence
    from fedpeft.report.wording import caution

    if not (answer := prediction.answers[0].text):
        raise FedpeftError("the model wrote no answer to this image, so there is nothing to draw: leave --heatmap out.")
    found = evidence(predictor, prediction.example, answer)
    note = caution(procedural=predictor.record.procedural, tiny=predictor.record.tiny)
    draw(file, found, prediction, answer, caution=note)


def add_export(commands: Any) -> None:
    """Add the command to the command line."""
    export = commands.add_parser("export", help="write a site's own model as a folder that PEFT loads, at the site")
    export.add_argument("run", type=Path, help="a workspace of fedpeft simulate, a site's workspace, or an export")
    export.add_argument("--site", metavar="NAME", help="whose model; needed where a workspace has several sites")
    export.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="a new folder")
    export.add_argument("--round", default="last", metavar="N", help="last (default), best by validation, or a number")
    export.add_argument("--merged", action="store_true", help="full weights too, with what was trained in them")
    export.add_argument("--onnx", action="store_true", help="the model for ONNX too, compared with PyTorch")
    export.add_argument("--force", action="store_true", help="replace an earlier export in that folder")
    _add_backbones(export)
    export.set_defaults(command=_export)


def _export(arguments: argparse.Namespace) -> None:
    from fedpeft.inference.export import export
    from fedpeft.inference.exported import OWNERSHIP, check_place
    from fedpeft.inference.kept_model import find

    check_place(arguments.out, force=arguments.force)
    if arguments.onnx:
        from fedpeft.inference.export import check_installed

        check_installed()
    chosen = {"backbone": arguments.backbone, "image_backbone": arguments.image_backbone}
    kept = find(arguments.run, site=arguments.site, round=arguments.round, **chosen)
    differences = export(kept, arguments.out, force=arguments.force, merged=arguments.merged, onnx=arguments.onnx)
    for form, difference in differences.items():
        print(f"{form:8s} logits differ by at most {difference:.1e} from the run's")
    print(f"folder   {arguments.out}: site {kept.record.site}, round {kept.state.round}. {OWNERSHIP}")


def add_inspect(commands: Any) -> None:
    """Add the command to the command line."""
    inspect = commands.add_parser("inspect", help="write a page of a site's own data and answers, at the site")
    inspect.add_argument("run", type=Path, help="a workspace of fedpeft simulate, or a site's workspace")
    inspect.add_argument("--site", metavar="NAME", help="whose page; needed where a workspace has several sites")
    inspect.add_argument("--out", type=Path, required=True, metavar="FILE.html", help="a new file")
    inspect.add_argument(
        "--examples", type=int, default=0, metavar="N", help="show N images answered right and N answered wrong"
    )
    inspect.add_argument("--round", default="last", metavar="N", help="last (default), best by validation, or a number")
    inspect.set_defaults(command=_inspect)


def _inspect(arguments: argparse.Namespace) -> None:
    _check_inspect(arguments)
    from fedpeft.core.console import Console
    from fedpeft.inference.exported import is_exported
    from fedpeft.inference.kept_model import find
    from fedpeft.inference.site_page import write_page
    from fedpeft.inference.site_subject import has_projection, subject_of

    if is_exported(arguments.run):
        raise FedpeftError(
            f"{arguments.run} is an exported folder, which does not say where data are: name the run's workspace, "
            "or the site's."
        )
    console = Console()
    kept = find(arguments.run, site=arguments.site, round=arguments.round)
    subject = subject_of(kept, console=console)
    write_page(arguments.out, subject, examples=arguments.examples)
    for line in (
        *facts(kept.record, kept.state.round, subject.figures, len(subject.predictions)),
        *subject.remarks,
    ):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if not has_projection():
        print("no map   of the features without scikit-learn: pip install 'flare-fedpeft[inspect]'")
    print(f"page     {arguments.out}: it shows data of site {kept.record.site} and stays there")


def _check_inspect(arguments: argparse.Namespace) -> None:
    """Refuse what cannot be done before anything is loaded."""
    if arguments.out.suffix.lower() != ".html":
        raise FedpeftError(f"--out is {str(arguments.out)!r}, it must end in .html.")
    if not 0 <= arguments.examples <= MAX_EXAMPLES:
        raise FedpeftError(f"--examples is {arguments.examples}, it must be from 0 to {MAX_EXAMPLES}.")
    if arguments.out.exists():
        raise FedpeftError(f"{arguments.out} is there already, and nothing is replaced: name a new file.")
    from fedpeft.inference.exported import check_own_place

    check_own_place(arguments.out, holds="the page shows the site's answers")


def add_merge(commands: Any) -> None:
    """Add the command to the command line."""
    merge = commands.add_parser("merge", help="merge adapters that were trained apart, aligned, into a PEFT folder")
    merge.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help="PEFT folders: exports, or any others")
    merge.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="a new folder")
    merge.add_argument(
        "--weights", metavar="W,W,...", help="of the folders, such as 300,100,100; in proportion (default: equal)"
    )
    merge.add_argument("--plain", action="store_true", help="average the tensors as they stand, without alignment")
    merge.add_argument("--rank", type=int, metavar="R", help="of LoRA, at most this rank (default: all of the mean)")
    merge.add_argument(
        "--check",
        type=Path,
        metavar="DIR",
        help="labelled data: measure each export, the plain mean and the merged one",
    )
    _add_backbones(merge, of="for --check")
    merge.set_defaults(command=_merge)


def _merge(arguments: argparse.Namespace) -> None:
    from fedpeft.inference.merging import check_new, merged_of, read_all, write
    from fedpeft.methods import METHODS

    check_new(arguments.out)
    weights = _parse_weights(arguments.weights) if arguments.weights is not None else None
    chosen = {"backbone": arguments.backbone, "image_backbone": arguments.image_backbone}
    for name, value in chosen.items():
        if value is not None and arguments.check is None:
            option = f"--{name.replace('_', '-')}"
            raise FedpeftError(
                f"{option} is {value!r:.200} and belongs to --check, since only that needs a model: leave it out, or "
                f"add --check DIR."
            )
    adapters = read_all(arguments.folders)
    merged = merged_of(adapters, weights, plain=arguments.plain, rank=arguments.rank)
    pages = {}
    if arguments.check is not None:
        from fedpeft.core.console import Console
        from fedpeft.inference.merge_check import PAGE, measure_all, page, report_lines

        console = Console()

        def say(line: Any) -> None:
            console.print(line, markup=False, highlight=False, soft_wrap=True)

        checked = measure_all(adapters, merged, arguments.check, weights=weights, **chosen, say=say)
        pages[PAGE] = page(checked, arguments.out.name, f"{len(adapters)} adapters on {arguments.check.name}")
        for line in report_lines(checked):
            say(line)
    write(arguments.out, merged, pages=pages)
    name = adapters[0].tuning.name
    how = "aligned"
    if arguments.plain:
        how = "averaged as they stand"
    elif METHODS.get(name).products:  # no order of rank directions is the right one
        how = f"the mean of their products{f', at most of rank {arguments.rank}' if arguments.rank else ''}"
    print(f"folder   {arguments.out}: {len(adapters)} adapters of method {name}, {how}")
    for name in pages:
        print(f"page     {arguments.out / name}")


def _parse_weights(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise FedpeftError(f"--weights is {text!r:.80}: give numbers with commas between them, 300,100.") from error
