# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Replies that are large together go to the server's disk as they arrive, by FLARE's own offload of streamed tensors.

FLARE writes each tensor into a file of its own and removes a reply's files once nobody holds the reply. Its folder is a
temporary one of FLARE's choice, which a crash leaves behind; here it lies beside the checkpoints, and the next process
that writes there removes what a dead one left.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from nvflare.apis.fl_context import FLContext
from nvflare.app_common.utils.tensor_disk_offload_context import _TENSOR_DISK_OFFLOAD_ROOT_DIR
from nvflare.app_opt.pt.lazy_tensor_dict import _LazyRef
from nvflare.app_opt.pt.tensor_downloader import cleanup_active_disk_tensor_downloads
from nvflare.fuel.utils.fobs import FOBSContextKey

from fedpeft.core.states import Stored, StoredState
from fedpeft.protocol.fields import MB

M_MMAP_THRESHOLD = -3  # of malloc.h
MAX_KEPT = 2**18  # bytes; a larger buffer is a mapping of its own
MAX_IN_MEMORY = 256 * MB  # of the replies of one task together, as they were announced


def give_freed_memory_back() -> None:
    """Let glibc return large buffers to the system at once: it would keep them for each of FLARE's many threads."""
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL("libc.so.6").mallopt(M_MMAP_THRESHOLD, MAX_KEPT)


@contextmanager
def offloaded(fl_ctx: FLContext, folder: Path) -> Iterator[None]:
    """Let the tensors of messages that this process receives go to files in a folder."""
    cells = _cells(fl_ctx)
    offload(cells, folder)
    try:
        yield
    finally:
        for cell in cells:
            cell.update_fobs_context({FOBSContextKey.TENSOR_DISK_OFFLOAD: False})


def offload(cells: Iterable[Any], folder: Path) -> None:
    """Let the tensors of messages that these cells receive go to files in a folder from now on."""
    give_freed_memory_back()
    for cell in cells:
        cell.update_fobs_context({FOBSContextKey.TENSOR_DISK_OFFLOAD: True, _TENSOR_DISK_OFFLOAD_ROOT_DIR: str(folder)})


def _cells(fl_ctx: FLContext) -> list[Any]:
    """Return the cells that replies may reach: a job process has one, the simulator's server another for the job."""
    engine = fl_ctx.get_engine()
    candidates = [engine.get_cell(), getattr(getattr(engine, "server", None), "job_cell", None)]
    return [cell for cell in candidates if cell]


def read_from_disk(tensors: Any) -> Any:
    """Return a message's tensors as a state on disk if all of them went there; anything else is returned as it is."""
    if not isinstance(tensors, Mapping) or not tensors:
        return tensors
    if not all(isinstance(tensor, _LazyRef) for tensor in tensors.values()):
        return tensors
    places = {key: Stored(ref.file_path, ref.key) for key, ref in tensors.items()}
    return StoredState(places, holder=list(tensors.values()))


@contextmanager
def downloads_into(folder: Path) -> Iterator[None]:
    """End downloads into a folder on leaving: late ones would go on writing while it is removed."""
    try:
        yield
    finally:
        cleanup_active_disk_tensor_downloads("the job has ended", root_dir=str(folder))
