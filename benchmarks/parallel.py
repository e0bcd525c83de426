# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Runs of a benchmark at the same time, each in a process."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from fedpeft.core.errors import FedpeftError
from fedpeft.job.composing import compose


@contextmanager
def processes(count: int) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of processes. Where one of its runs fails, those that have not begun are cancelled."""
    with ProcessPoolExecutor(count) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def at_least_one(text: str) -> int:
    """Read a number of processes; of any other text argparse says what is wrong."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def check_settings(parser: argparse.ArgumentParser, configs: Path, job: str, overrides: Sequence[str]) -> None:
    """End the program with a sentence where a job cannot have these settings, before any run begins."""
    try:
        compose(configs, job, overrides)
    except FedpeftError as error:
        parser.error(f"--set: {error}")
