# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""How many sites of a job fit on one GPU beside each other, by what one of them is measured to need."""

from __future__ import annotations

import ctypes
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

from fedpeft.core.errors import FedpeftError
from fedpeft.doctor.context import Context, open_context


def sites_at_once(job: Path, threads: int, *, workspace: Path) -> tuple[int, str]:
    """Return how many sites may train at once, and what doctor says about the GPU; all and "" where none trains on one.

    It is measured in a process of its own, which gives the GPU's memory back. Without NVIDIA's driver nothing is.

    Args:
        job: a job folder.
        threads: sites that would train at once.
        workspace: the simulator's folder.

    Raises:
        FedpeftError: not even one fits, or the network cannot be built.
    """
    if not _driver():
        return threads, ""
    try:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            count, sentence = process.submit(_measured, job, threads, workspace).result()
    except BrokenProcessPool as error:
        raise FedpeftError(
            f"the process that measures what a site of {job} needs on the GPU was killed: lower training.batch_size, "
            f"or use -t 1, which measures nothing."
        ) from error
    if not count:
        raise FedpeftError(sentence)
    return count, sentence


def fitting(context: Context, threads: int) -> tuple[int, str]:
    """Return what `sites_at_once` returns, measured in this process; 0 if not even one site fits."""
    from fedpeft.doctor import memory
    from fedpeft.job.site_job import SiteJob
    from fedpeft.site import computing

    if context.job is None:
        return threads, ""
    training = SiteJob.from_sections(context.job.sections, site=context.sites[0]).training
    if computing.device_of(training).type != "cuda":
        return threads, ""
    one = context.footprint
    free, name = memory.card(one.device)
    finding = memory.gpu(one, free, threads, name=name)
    return min(threads, free // memory.on_gpu(one)), finding.sentence


def _driver() -> bool:
    """Return whether this machine has NVIDIA's driver, without importing torch."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def _measured(job: Path, threads: int, workspace: Path) -> tuple[int, str]:
    try:
        return fitting(open_context(job, workspace=workspace), threads)
    except FedpeftError as error:
        return 0, str(error)
