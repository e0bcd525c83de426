# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The command `fedpeft export`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Add the command to the command line."""
    export = commands.add_parser("export", help="write a site's own model as a folder that PEFT loads, at the site")
    export.add_argument("run", type=Path, help="a workspace of fedpeft simulate, or a site's workspace")
    export.add_argument("--site", metavar="NAME", help="whose model; needed where a workspace has several sites")
    export.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="a new folder")
    export.add_argument("--round", default="last", metavar="N", help="last (default), best by validation, or a number")
    export.add_argument("--merged", action="store_true", help="full weights too, with what was trained in them")
    export.add_argument("--onnx", action="store_true", help="the model for ONNX too, compared with PyTorch")
    export.add_argument("--force", action="store_true", help="replace an earlier export in that folder")
    export.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> None:
    from fedpeft.inference.export import export
    from fedpeft.inference.exported import check_place
    from fedpeft.inference.kept_model import find
    from fedpeft.inference.model_card import OWNERSHIP

    check_place(arguments.out, force=arguments.force)
    if arguments.onnx:
        from fedpeft.inference.onnx_file import check_installed

        check_installed()
    kept = find(arguments.run, site=arguments.site, round=arguments.round)
    differences = export(kept, arguments.out, force=arguments.force, merged=arguments.merged, onnx=arguments.onnx)
    for form, difference in differences.items():
        print(f"{form:8s} logits differ by at most {difference:.1e} from the run's")
    print(f"folder   {arguments.out}: site {kept.record.site}, round {kept.state.round}. {OWNERSHIP}")
