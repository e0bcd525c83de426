# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Check that a training step fits into this machine's main memory and GPU, and how many sites fit on one GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

import psutil

from fedpeft.core.errors import FedpeftError
from fedpeft.core.processes import hide_current_folder
from fedpeft.doctor.context import Context, Finding, failed, open_context, passed, warned
from fedpeft.doctor.footprint import Footprint

GB, GIB = 10**9, 2**30
CUDA_CONTEXT = GB // 2
FLARE = 3 * GB // 10  # FLARE's own process of a job, which starts the one that trains
CONTAINER = Path("/sys/fs/cgroup")


def check_memory(context: Context) -> Iterator[Finding]:
    """Check one site's footprint, and that of all sites that train here at once."""
    if not context.sites:
        return
    one, count = context.footprint, len(context.sites)
    cuda = one.device.startswith("cuda")
    yield passed(f"training runs on {one.device}.")
    if cuda:
        free, name = card(one.device)
        yield gpu(one, free, count, name=name)
    yield main_memory(one, available() + psutil.Process().memory_info().rss, count, on_gpu=cuda)
    if context.policy and context.policy.memory_gib:
        yield within_limit(one, context.policy.memory_gib, on_gpu=cuda)


def within_limit(one: Footprint, gib: float, *, on_gpu: bool) -> Finding:
    """Check the training process, or its part of a GPU, against `memory_gib` of the site policy."""
    needed = max(one.process, one.weights + one.step) if on_gpu else one.process + one.step
    facts = f"memory_gib of the site policy is {gib:g}, and the training process needs about {needed / GIB:.1f} GiB"
    if needed > gib * GIB:
        return failed(f"{facts}: raise memory_gib, or lower {one.lower}, features_mib or images_mib.")
    return passed(f"{facts}.")


def card(device: str) -> tuple[int, str]:
    """Return the bytes of a GPU that will be free after this measurement, and its name with its size."""
    import torch

    free, total = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device)  # held by this measurement
    return free, f"{torch.cuda.get_device_name(device)} with {total / GB:.0f} GB"


def gpu_bytes(one: Footprint) -> int:
    """Return what a site needs of a GPU, in bytes: weights, a training step and CUDA's context."""
    return one.weights + one.step + CUDA_CONTEXT


def gpu(one: Footprint, free: int, count: int, *, name: str) -> Finding:
    """Check GPU memory."""
    return fits(f"memory of {name}", gpu_bytes(one), free, count, how=one.method, remedy=one.lower)


def main_memory(one: Footprint, free: int, count: int, *, on_gpu: bool) -> Finding:
    """Check main memory: FLARE's process, the training process and, without a GPU, the training step."""
    how = "processes with libraries, backbone, kept features and images" + f", and a step, {one.method}" * (not on_gpu)
    remedy = "training.features_mib, images_mib" + f" or {one.lower}" * (not on_gpu)
    return fits("main memory", FLARE + one.process + one.step * (not on_gpu), free, count, how=how, remedy=remedy)


def fits(what: str, needed: int, free: int, count: int, *, how: str, remedy: str) -> Finding:
    """Fail if one site does not fit; warn if not all sites fit at once."""
    facts = f"{what}: a site needs about {needed / GB:.1f} GB ({how}), {free / GB:.1f} GB are free"
    if needed > free:
        return failed(f"{facts}: lower {remedy}, or free memory.")
    if needed * count > free:
        return warned(f"{facts}, too little for {count} sites at once: simulate with -t {free // needed}.")
    return passed(f"{facts}{f', enough for {count} sites at once' * (count > 1)}.")


def available() -> int:
    """Return the free main memory in bytes, within a container's limit."""
    free = psutil.virtual_memory().available
    try:
        limit = int((CONTAINER / "memory.max").read_text())
        return min(free, limit - int((CONTAINER / "memory.current").read_text()))
    except (OSError, ValueError):  # no container, or one without a limit ("max")
        return free


def sites_at_once(job: Path, threads: int, *, workspace: Path) -> tuple[int, str]:
    """Return how many sites may train at once, and doctor's sentence about the GPU; all and "" if none trains on one.

    A process of its own measures it and gives the GPU's memory back; without NVIDIA's driver nothing is measured.
    """
    if not _driver():
        return threads, ""
    try:
        with hide_current_folder(), ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
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
    from fedpeft.site import computing

    if context.job is None:
        return threads, ""
    training = context.at(context.sites[0]).training
    if computing.device_of(training).type != "cuda":
        return threads, ""
    one = context.footprint
    free, name = card(one.device)
    finding = gpu(one, free, threads, name=name)
    return min(threads, free // gpu_bytes(one)), finding.sentence


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
