# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Merge adapters that were trained apart into one: PEFT folders in, a PEFT folder out; no model, no FLARE.

Neurons of bottleneck adapters are brought into one order around their fixed point and averaged
(`alignment.integrate`). LoRA has nothing between its factors, so that any invertible matrix there leaves it as it is:
the products are averaged (`alignment.low_rank.merge_products`).
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fedpeft.alignment.integration import integrate
from fedpeft.alignment.low_rank import merge_products
from fedpeft.alignment.neurons import neurons_of
from fedpeft.alignment.settings import FIXED_POINT, PIASettings
from fedpeft.core.errors import FedpeftError
from fedpeft.core.files import check_folder, follow_umask, replacing
from fedpeft.core.keys import SHARED, group_by_place, parse_key, place_of
from fedpeft.core.states import State
from fedpeft.inference.exported import BESIDE
from fedpeft.inference.same_function import difference, frozen_model_of, last_part, one_model, reading_scales
from fedpeft.methods import METHODS
from fedpeft.methods.adapters import (
    CONFIG_FILE,
    CONNECTOR_FILE,
    MODEL,
    ROOT,
    WEIGHTS_FILE,
    read_config,
    read_tensors,
    tuning_of,
    write_files,
)
from fedpeft.methods.setting_limits import MAX_WIDTH, MIN_REDUCTION
from fedpeft.site.site_state import RECORD

if TYPE_CHECKING:
    from peft import PeftConfig

    from fedpeft.methods.slot_tuning import SlotTuning

PICKLE = "adapter_model.bin"
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
MAX_NAME = 512  # characters of a tensor's name, against which a configuration's patterns are matched
_NUMBER = re.compile(r"(?:^|\.)(\d{1,5})(?=\.|$)")


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """An adapter of a PEFT folder."""

    name: str  # of the folder, for errors and tables
    config: PeftConfig
    state: State  # its tensors by key (`fedpeft.core.keys`); the last matrix of LoRA is multiplied by its scale
    paths: Mapping[str, str]  # place -> path of the module in the model
    base: str = ""  # the model that the adapter is for, by its folder; empty: unknown

    @property
    def tuning(self) -> SlotTuning:
        """The code of its method."""
        return tuning_of(self.config)


@dataclass(frozen=True, kw_only=True)
class Merged:
    """A merged adapter: its tensors as in `Adapter`, and what replaces settings of the configuration."""

    config: PeftConfig
    state: State
    paths: Mapping[str, str]
    settings: Mapping[str, Any] = field(default_factory=dict)


def merge(
    folders: Sequence[str | Path],
    out: str | Path = "merged",
    *,
    weights: Sequence[float] | None = None,
    plain: bool = False,
    rank: int | None = None,
) -> Path:
    """Merge adapters that were trained apart, and write a PEFT folder.

        bottleneck   W = sum_k w_k P_k W_k     P_k: orders in which the incoming weights of the neurons are nearest to
                                               their mean
        LoRA         s B A = sum_k w_k s_k B_k A_k     s_k = alpha_k / r_k; s: that of the first folder

    Args:
        folders: of `fedpeft export`, the `adapter/` of a run, or any that PEFT wrote; of LoRA or of a bottleneck
            adapter, all of one method for one model. Widths and ranks may differ; the result is as wide as the widest,
            and has the rank of the mean.
        out: a new folder, which `PeftModel.from_pretrained` and `fedpeft.load_adapter` read.
        weights: of the adapters; only their proportions matter. Default: equal.
        plain: average the tensors as they stand, without alignment.
        rank: of LoRA, cut the mean to its best approximation of this rank.

    Returns:
        The folder `out`.

    Raises:
        FedpeftError: folders that do not fit together, or whose tensors are not finite; names folder and tensor.
    """
    out = Path(out)
    check_new(out)
    adapters = read_all([Path(folder) for folder in folders])
    write(out, merged_of(adapters, weights, plain=plain, rank=rank))
    return out


def check_new(out: Path) -> None:
    """Refuse a folder that holds something, and the current one, which cannot be replaced."""
    if out.resolve() == Path.cwd():
        raise FedpeftError(f"{str(out)!r} is the current folder, which would be replaced: name a new folder.")
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise FedpeftError(f"{out} is there already, and nothing is replaced: name a new folder.")


def read_all(folders: Sequence[Path]) -> list[Adapter]:
    """Read adapters that are to be merged, and refuse those that do not fit together."""
    if len(folders) < 2:
        raise FedpeftError(f"there is {len(folders)} folder, and a merge takes at least two: name another one.")
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise FedpeftError("a folder is named twice: name it once, and give it more of the sum with --weights.")
    adapters = [read(folder) for folder in folders]
    for one, other in combinations(adapters, 2):
        _check_kind(one, other)  # a folder that names none goes with any
    for adapter in adapters[1:]:
        _check_pair(adapters[0], adapter)
    return adapters


def read(folder: Path) -> Adapter:
    """Read one adapter; the folder may be a stranger's."""
    if not folder.is_dir():
        raise FedpeftError(f"{folder} is not a folder: name one that holds {CONFIG_FILE}.")
    try:
        check_folder(folder)
    except OSError as error:
        raise FedpeftError(f"{folder} cannot be read ({error.strerror}): name a folder of PEFT.") from error
    if (folder / PICKLE).exists() and not (folder / WEIGHTS_FILE).exists():
        raise FedpeftError(
            f"{folder} holds its tensors in {PICKLE}, a pickle that can run code when it is read: save the adapter "
            f"again as safetensors, with PEFT's save_pretrained."
        )
    if (folder / BESIDE).is_dir():
        raise FedpeftError(
            f"{folder} holds a second adapter that runs beside the first, and the mean of one of them is another "
            f"model: export a run of method.pia.integration=weight_space or of FedAvg."
        )
    if (folder / CONNECTOR_FILE).exists():
        raise FedpeftError(
            f"{folder} holds a connector of its backbone that trained with the adapter, and adapters of different "
            f"connectors read different tokens: merge those of runs with backbone.projection=orthogonal."
        )
    config = read_config(folder)
    tuning = tuning_of(config)
    if not METHODS.get(tuning.name).neurons:
        raise FedpeftError(
            f"{folder} is an adapter of method {tuning.name}, which has no neurons to align: merge takes LoRA and "
            f"bottleneck adapters."
        )
    try:
        tuning.check_merge(config)
    except FedpeftError as error:
        raise FedpeftError(f"{folder} cannot be merged: {error}") from error
    state, paths = _own_keys(folder, _tensors(folder / WEIGHTS_FILE), tuning)
    _check_neurons(folder, state, paths, pairs=METHODS.get(tuning.name).products)
    return Adapter(
        name=str(folder),
        config=config,
        state=_scaled(folder, state, paths, config, tuning),
        paths=paths,
        base=frozen_model_of(folder) if (folder / RECORD).is_file() else last_part(config.base_model_name_or_path),
    )


def merged_of(
    adapters: Sequence[Adapter], weights: Sequence[float] | None = None, *, plain: bool = False, rank: int | None = None
) -> Merged:
    """Merge adapters in memory; arguments as in `merge`."""
    first, weights = adapters[0], shares(adapters, weights)
    products = METHODS.get(first.tuning.name).products
    if rank is not None and (not products or plain or not isinstance(rank, Integral) or rank < 1):
        raise FedpeftError(
            f"--rank is {rank}: give a whole number from 1 on, for LoRA without --plain, or leave it out."
        )
    settings = PIASettings(server=not plain, reference="fedavg" if plain else FIXED_POINT, gamma=0.0)
    states, names = [one.state for one in adapters], [one.name for one in adapters]
    if plain:
        for one in adapters[1:]:
            _check_widths(first, one)
    if products and not plain:
        _check_matrices(first)
        state = merge_products(states, weights, rank=rank, sites=names)
    else:
        state, _ = integrate(states, weights, settings, sites=names)
    same = (one for one in adapters if not products and _shapes(one.state) == _shapes(state))
    if (like := next(same, None)) is not None:
        return Merged(config=like.config, state=state, paths=first.paths)
    if not products:
        _check_one_width_a_layer(state, first)
    changes = first.tuning.merged_settings(first.config, state)
    return Merged(config=first.config, state=state, paths=first.paths, settings=changes)


TINIEST = 1e-12


def shares(adapters: Sequence[Adapter], weights: Sequence[float] | None) -> list[float]:
    """Return the weight of each adapter, with the sum 1."""
    if weights is None:
        return [1 / len(adapters)] * len(adapters)
    if len(weights) != len(adapters):
        raise FedpeftError(f"there are {len(weights)} weights for {len(adapters)} folders: give one for each.")
    if wrong := [weight for weight in weights if not (math.isfinite(weight) and weight > 0)]:
        raise FedpeftError(f"a weight is {wrong[0]:g}, it must be a finite number above 0.")
    largest = max(weights)  # the sum of very large ones is infinite
    if tiny := [weight for weight in weights if weight / largest < TINIEST]:
        raise FedpeftError(f"a weight is {tiny[0]:g}, below {TINIEST:g} of the largest: leave out that folder.")
    scaled = [math.ldexp(weight, -math.frexp(largest)[1]) for weight in weights]  # exact
    return [weight / sum(scaled) for weight in scaled]


def peft_tensors(merged: Merged) -> dict[str, torch.Tensor]:
    """Return the tensors of a merged adapter under PEFT's names, with the widths and the scale of its configuration."""
    tuning, tensors, config = tuning_of(merged.config), {}, _written(merged)
    for key, tensor in merged.state.items():
        parts = parse_key(key)
        if parts is None:
            tensors[f"{ROOT}{tuning.name}_{key}"] = tensor
            continue
        path = merged.paths[parts.place]
        if (rank := merged.settings.get("r")) is not None:
            missing = rank - merged.state[f"{parts.place}.A"].shape[0]
            if parts.tensor == "B":
                tensor = tensor / tuning.scale(config, path, rank)
            axis = 0 if parts.tensor == "A" else 1
            shape = [missing if number == axis else size for number, size in enumerate(tensor.shape)]
            tensor = torch.cat([tensor, tensor.new_zeros(shape)], dim=axis)
        tensors[f"{MODEL}{path}.{tuning.peft_name(parts.tensor)}"] = tensor.contiguous()
    return tensors


def _written(merged: Merged) -> PeftConfig:
    """Return a copy of the configuration with the settings that a merge replaces."""
    config = copy.deepcopy(merged.config)
    for name, value in merged.settings.items():
        setattr(config, name, value)
    return config


def write(out: Path, merged: Merged, *, pages: Mapping[str, str] | None = None) -> None:
    """Write a merged adapter as a PEFT folder; it appears when everything in it is written."""
    config = _written(merged)
    config.inference_mode = True
    with replacing(out) as draft:
        draft.mkdir()
        write_files(draft, config, peft_tensors(merged))
        follow_umask(draft / WEIGHTS_FILE)
        for name, text in (pages or {}).items():
            (draft / name).write_text(text, encoding="utf-8")


def _tensors(file: Path) -> State:
    if not file.is_file():
        raise FedpeftError(f"{file} does not exist: name a folder that PEFT, fedpeft export or a run wrote.")
    tensors = read_tensors(file)
    for key, tensor in tensors.items():
        if tensor.dtype not in DTYPES:
            kinds = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
            raise FedpeftError(f"{file} has {key:.200} as {tensor.dtype}: only {kinds} can be averaged.")
        if not tensor.isfinite().all():
            raise FedpeftError(
                f"{file} has NaN or infinity in {key:.200}: leave this adapter out, its training diverged."
            )
    return tensors


def _own_keys(folder: Path, tensors: State, tuning: SlotTuning) -> tuple[State, dict[str, str]]:
    """Return tensors by key, and place -> module path; slots are named by paths, so that any model will do."""
    state: State = {}
    paths: dict[str, str] = {}
    for name, tensor in tensors.items():
        shared = name.removeprefix(f"{ROOT}{tuning.name}_")
        if shared != name and shared.startswith(SHARED):
            state[shared] = tensor
            continue
        split = tuning.split_peft_name(name.removeprefix(MODEL)) if name.startswith(MODEL) else None
        if len(name) > MAX_NAME:
            raise FedpeftError(
                f"{folder} holds {name!r:.80}, a name of {len(name):,} characters, allowed are {MAX_NAME}: leave this "
                f"adapter out."
            )
        if split is None:
            raise FedpeftError(
                f"{folder} holds {name!r:.200}, which is no tensor of method {tuning.name}: merge only takes "
                f"adapters, without modules_to_save or biases."
            )
        place = _place(split[0])
        if paths.setdefault(place, split[0]) != split[0]:
            raise FedpeftError(f"{folder} has the modules {split[0]!r:.200} and {paths[place]!r:.200}: rename one.")
        state[f"{place}.{split[1]}"] = tensor
    if not paths:
        raise FedpeftError(f"{folder} holds no tensor of method {tuning.name}: save the adapter again.")
    return dict(sorted(state.items())), paths


def _place(path: str) -> str:
    """Return `layer.<l>.<slot>` of a module's path: l is the first number in it, and the slot is the rest."""
    number = _NUMBER.search(path)
    rest = path if number is None else path[: number.start()] + path[number.end() :]
    slot = re.sub(r"[^a-z0-9_]", "_", rest.strip(".").lower())
    return place_of(int(number[1]) if number else 0, slot if slot[:1].isalpha() else f"module{slot}")


def _check_neurons(folder: Path, state: State, paths: Mapping[str, str], *, pairs: bool) -> None:
    """Refuse places without all their tensors, and more neurons than any job may have: aligning them takes long.

    `pairs`: a place is a product of two factors, which nothing aligns.
    """
    places = group_by_place(state)
    for place, path in paths.items():
        names = places[place]
        if (neurons := neurons_of(names)) is None:
            raise FedpeftError(f"{folder} holds only {', '.join(names)} of {path!r:.200}: save the adapter again.")
        for name, axis in neurons.incoming.items():
            shape = state[names[name]].shape if name in names else None
            if shape is None or (len(shape) == 1 and axis == 0 and not pairs):
                continue
            if len(shape) < 2 or shape[axis] > MAX_WIDTH:
                raise FedpeftError(
                    f"{folder} has {name} of {path!r:.200} in shape {tuple(shape)}, allowed are matrices with up to "
                    f"{MAX_WIDTH} neurons: leave this adapter out, or save it again if it is damaged."
                )
            if (
                not pairs
                and not neurons.blocked
                and shape[axis] * MIN_REDUCTION > math.prod(shape) / max(shape[axis], 1)
            ):
                raise FedpeftError(
                    f"{folder} has {shape[axis]} neurons in {path!r:.200}, more than {1 / MIN_REDUCTION:g} times their "
                    f"inputs, as no adapter has: leave it out."
                )


def _scaled(folder: Path, state: State, paths: Mapping[str, str], config: PeftConfig, tuning: SlotTuning) -> State:
    """Return a state whose products include their scale; see `SlotTuning.scale`."""
    scaled = dict(state)
    for place, names in group_by_place(state).items():
        if {"A", "B"} <= names.keys() and place in paths:
            width = state[names["A"]].shape[0]
            with reading_scales(folder / CONFIG_FILE):
                scale = float(tuning.scale(config, paths[place], max(width, 1)))
                if not math.isfinite(scale):
                    raise ArithmeticError(scale)
            scaled[names["B"]] = state[names["B"]] * scale
    return scaled


def _check_matrices(adapter: Adapter) -> None:
    for key, tensor in adapter.state.items():
        parts = parse_key(key)
        if parts and parts.tensor in ("A", "B") and tensor.dim() != 2:
            raise FedpeftError(
                f"{adapter.name} adapts {adapter.paths[parts.place]!r:.200}, whose {parts.tensor} has {tensor.dim()} "
                f"dimensions, and the mean of products is one of matrices: use --plain, or merge LoRA of linear layers."
            )


def _check_kind(first: Adapter, other: Adapter) -> None:
    """Refuse adapters of two methods, or of two models."""
    if first.tuning.name != other.tuning.name:
        raise FedpeftError(
            f"{first.name} is an adapter of method {first.tuning.name} and {other.name} of {other.tuning.name}: merge "
            f"adapters of one method."
        )
    if first.base and other.base and not one_model(first.base, other.base):
        raise FedpeftError(
            f"{first.name} is for the model {first.base!r:.200} and {other.name} for {other.base!r:.200}: merge "
            f"adapters of one model."
        )


def _check_pair(first: Adapter, other: Adapter) -> None:
    for owner, lacking in ((other, first.state.keys() - other.state), (first, other.state.keys() - first.state)):
        if lacking:
            raise FedpeftError(
                f"{owner.name} lacks {_peft_name(first, other, min(lacking))}, which another one has: merge adapters "
                f"of the same layers and modules."
            )
    if found := difference(first.config, other.config, scaled=True):
        setting, *values = found
        raise FedpeftError(
            f"{first.name} has {setting}={values[0]!r:.80} and {other.name} {values[1]!r:.80}: these are "
            f"different functions, merge adapters of one setting."
        )


def _peft_name(first: Adapter, other: Adapter, key: str) -> str:
    parts = parse_key(key)
    paths = {**first.paths, **other.paths}
    return f"{paths[parts.place]}.{parts.tensor}" if parts else key


def _check_widths(first: Adapter, other: Adapter) -> None:
    mine, theirs = _shapes(first.state), _shapes(other.state)
    for key, shape in mine.items():
        if theirs[key] != shape:
            raise FedpeftError(
                f"{other.name} has {_peft_name(first, other, key)} of shape {theirs[key]} and {first.name} of {shape}: "
                f"a plain mean needs one width or rank, leave --plain out."
            )


def _check_one_width_a_layer(state: State, first: Adapter) -> None:
    """Refuse several widths in one layer, since a configuration has one for each layer."""
    widths: dict[int, int] = {}
    for key, tensor in state.items():
        if (parts := parse_key(key)) is None or parts.tensor != "down.weight":
            continue
        if widths.setdefault(parts.layer, len(tensor)) != len(tensor):
            raise FedpeftError(
                f"{first.paths[parts.place]} would have {len(tensor)} neurons, and another place of its layer "
                f"{widths[parts.layer]}: merge adapters whose widths differ in all places of a layer alike."
            )
    if not widths:
        raise FedpeftError(
            f"adapters of method {first.tuning.name} differ in width, and none is the widest at every place: merge "
            f"those of one width, or with one that is the widest."
        )


def _shapes(state: State) -> dict[str, tuple[int, ...]]:
    return {key: tuple(tensor.shape) for key, tensor in state.items()}
