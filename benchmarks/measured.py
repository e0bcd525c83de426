# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""How the benchmarks measure and print: where and when, seconds of a command, tables of ratios."""

import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from fedpeft.job.composing import compose

ROOT = Path(__file__).resolve().parents[1]
JOB = "fedpia_task1"
WIDTH = 118


def sections(overrides: Iterable[str]) -> dict:
    """The sections of the embedded job with some settings changed, as `--set` does."""
    return compose(ROOT / "app_configs", JOB, overrides)


def machine() -> str:
    """Where, with what and when this was measured, and how busy the machine was; one line for each."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    cpu = next((line.split(": ")[1] for line in lines if line.startswith("model name")), platform.processor())
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "peft", "nvflare"))
    load = f"load before {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "load unknown"
    threads = os.environ.get("OMP_NUM_THREADS", "not set")
    return (
        f"{date.today()}: {cpu}, {os.cpu_count()} cores, {platform.system()}, {load}\n"
        f"Python {platform.python_version()}, {packages}; OMP_NUM_THREADS {threads}, sites train with 1 torch thread"
    )


def memory_mib(device: Any, *, peak: bool) -> float:
    """MiB that CUDA's allocator has handed out, or that the process has resident: the most so far, or now."""
    import torch

    if device.type == "cuda":
        return (torch.cuda.max_memory_allocated(device) if peak else torch.cuda.memory_allocated(device)) / 2**20
    field = "VmHWM" if peak else "VmRSS"
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def show(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], note: str) -> None:
    """Print one table: the first column to the left, all others to the right, and how to read it."""
    table = Table(title=title, title_justify="left", caption=note, caption_justify="left", box=box.SIMPLE_HEAD)
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    for row in rows:
        table.add_row(*row)
    Console(width=WIDTH, highlight=False).print(table)


def ratio(values: Sequence[float]) -> str:
    """Median of paired ratios, and the smallest and the largest of them."""
    if len(values) == 1:
        return f"{values[0]:.3f}"
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def timed(command: Sequence[str], *, cwd: Path = ROOT) -> tuple[float, float]:
    """Run a command; its wall seconds, and the CPU seconds of it and all that it waited for.

    Compiled modules are cached, as they are for every user from the second start on.

    Raises:
        RuntimeError: it failed; with the end of what it printed.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryFile() as output:
        began = time.perf_counter()
        process = subprocess.Popen(command, cwd=cwd, env=environment, stdout=output, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            output.seek(0)
            raise RuntimeError(
                f"{' '.join(command)} ended with {process.returncode}:\n{output.read().decode()[-2000:]}"
            )
    return seconds, usage.ru_utime + usage.ru_stime


def python(*arguments: str) -> list[str]:
    """A command line of the Python that runs this."""
    return [sys.executable, *arguments]
