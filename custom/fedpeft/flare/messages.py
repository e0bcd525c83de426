# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A message as FLARE sends it, and the replies to one task, each checked as it arrives.

A message is an FLModel, tensors in `params`, all other fields as one object in `meta["fedpeft"]`. FLARE's tensor
messages carry any dtype, as safetensors, without pickle, in a bounded size.

Replies that are large together go to the server's disk as they arrive, by FLARE's own offload of streamed tensors.
FLARE writes each tensor into a file of its own and removes a reply's files once nobody holds the reply. A crash would
leave FLARE's own temporary folder behind. Here the folder is beside the checkpoints, and the next process that writes
there removes what a dead one left.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

from nvflare.apis.dxo import DataKind
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_common.utils.tensor_disk_offload_context import _TENSOR_DISK_OFFLOAD_ROOT_DIR
from nvflare.app_opt.pt.decomposers import TensorDecomposer
from nvflare.app_opt.pt.lazy_tensor_dict import _LazyRef
from nvflare.app_opt.pt.tensor_downloader import cleanup_active_disk_tensor_downloads
from nvflare.fuel.utils import fobs
from nvflare.fuel.utils.fobs import FOBSContextKey

from fedpeft.core.errors import FedpeftError
from fedpeft.core.states import Stored, StoredState
from fedpeft.flare.hardening.message_limits import limit_messages
from fedpeft.protocol.fields import MB, REFUSED, shown
from fedpeft.protocol.types import M, Order, Reply, fields_of, message_from

DECOMPOSERS = "fedpeft.flare.decomposers"
SETTING = "NVFLARE_NVFLARE_DECOMPOSERS"  # the environment variable for FLARE's setting `nvflare_decomposers`


def register_tensors() -> None:
    """Register the decomposer of torch tensors in this process, and limit its messages."""
    fobs.register(TensorDecomposer)
    limit_messages()


def register_early() -> None:
    """Let the sites' processes that this one starts later register the decomposer before anything else."""
    os.environ.setdefault(SETTING, DECOMPOSERS)


FIELDS, KIND = "fedpeft", "fedpeft_kind"


def _contiguous(value: Any) -> Any:
    """Return a dense tensor as FLARE can send it; anything else as it is, for the filters to refuse."""
    import torch  # not where a site's FLARE process starts

    return value.contiguous() if isinstance(value, torch.Tensor) and value.layout == torch.strided else value


def to_model(message: Order | Reply, *, round: int | None = None, rounds: int | None = None) -> FLModel:
    """Return the message as FLARE sends it, with contiguous tensors; round and rounds are for FLARE."""
    state = {key: _contiguous(value) for key, value in message.state.items()} if message.carries_state else {}
    return FLModel(
        params_type=ParamsType.FULL,
        params=state,
        current_round=round,
        total_rounds=rounds,
        meta={FIELDS: fields_of(message)},
    )


def note_kind(shareable: Shareable) -> None:
    """Write the declared kind of the content into its meta: FLARE reads a kind that it does not know as weights."""
    content = shareable.get("DXO")
    if isinstance(content, dict) and isinstance(content.get("meta"), dict):
        content["meta"][KIND] = content.get("kind")


def model_of(shareable: Shareable) -> FLModel:
    """Return what arrived as an FLModel that `from_model` reads, with its declared kind."""
    note_kind(shareable)
    return FLModelUtils.from_shareable(shareable)


def from_model(kind: type[M], model: FLModel, *, sender: str = "the server") -> M:
    """Read a message out of what FLARE received; errors name the sender."""
    _check_kind(model, sender)
    return message_from(kind, model.meta.get(FIELDS), read_from_disk(model.params), sender=sender)


def _check_kind(model: FLModel, sender: str) -> None:
    """Refuse differences and collections, which would be read as whole adapters."""
    declared: Any = model.meta.get(KIND, DataKind.WEIGHTS)
    if declared == DataKind.WEIGHTS and model.params_type == ParamsType.DIFF:
        declared = ParamsType.DIFF.value
    if declared != DataKind.WEIGHTS:
        raise FedpeftError(
            f"{sender} sent content of kind {shown(declared)}, and only {DataKind.WEIGHTS.value} is read: install the "
            f"same fedpeft version everywhere, and leave out filters that change the kind.",
            code=REFUSED,
        )


R = TypeVar("R")


class Inbox(Generic[R]):
    """Takes replies from FLARE's threads and keeps those that `read` accepts; nothing here raises."""

    def __init__(self, read: Callable[[FLModel, str], R]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._accepted: dict[str, R] = {}
        self._refused: dict[str, str] = {}

    def receive(self, model: FLModel) -> None:
        """Check a reply; its sender is the site that FLARE gave the task to, whatever the reply says."""
        site = model.meta["client_name"]
        try:
            reply = self._read(model, site)
        except FedpeftError as error:
            self._note(self._refused, site, str(error))
        except Exception as error:  # whatever a site sends may cost only that site the round
            self._note(self._refused, site, f"site {site} sent a reply that cannot be read ({type(error).__name__}).")
        else:
            self._note(self._accepted, site, reply)

    def refuse(self, site: str, reason: str) -> None:
        """Record that a site's reply was refused before it was received."""
        self._note(self._refused, site, reason)

    def _note(self, replies: dict[str, Any], site: str, value: Any) -> None:
        with self._lock:
            replies[site] = value

    @property
    def accepted(self) -> dict[str, R]:
        """The accepted replies so far, by site."""
        with self._lock:
            return dict(self._accepted)

    def silent(self, sites: Iterable[str]) -> list[str]:
        """Return the sites whose reply has been neither accepted nor refused so far."""
        with self._lock:
            return [site for site in sites if site not in self._accepted and site not in self._refused]

    @property
    def refused(self) -> dict[str, str]:
        """The reasons of refusal so far, by site."""
        with self._lock:
            return dict(self._refused)


M_MMAP_THRESHOLD = -3  # of malloc.h
MAX_KEPT = 2**18  # bytes; a larger buffer is a mapping of its own
MAX_IN_MEMORY = 256 * MB  # of all replies of one task together, as announced


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
    """Return the cells that replies may reach: a job process has one, the simulator's server also one for the job."""
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
    """On leaving the block, end downloads into a folder: late ones would write while it is removed."""
    try:
        yield
    finally:
        cleanup_active_disk_tensor_downloads("the job has ended", root_dir=str(folder))
