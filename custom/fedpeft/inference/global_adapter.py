# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Predict with another adapter than the site's own: the server's, or any PEFT folder.

global                                the result of the run that is predicted with, which a simulator's workspace has
a run's folder, a downloaded job      its global.safetensors
a file *.safetensors                  the same
a folder with adapter_config.json     as PEFT, the server (adapter/) and fedpeft export write it
"""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file

from fedpeft.alignment.factors import is_factor
from fedpeft.alignment.low_rank import fitted
from fedpeft.core.errors import FedpeftError
from fedpeft.core.files import check_regular
from fedpeft.core.layer_matching import LayerNumbers
from fedpeft.core.states import State, first_misfit, of_keys
from fedpeft.core.workspace import GLOBAL_ADAPTER
from fedpeft.methods.products import fresh_factors
from fedpeft.methods.settings import MethodSettings
from fedpeft.report.status.progress import PLACES, SIMULATED
from fedpeft.site.round_values import only_head, without_head
from fedpeft.site.site_model import SiteModel
from fedpeft.site.site_state import SiteState

GLOBAL, CONFIG = "global", "adapter_config.json"


def find_adapter(named: str, run: Path) -> Path:
    """Return the PEFT folder or the file of tensors that the user means.

    Args:
        named: see above.
        run: what is predicted with, where `global` is looked for.
    """
    path = Path(named)
    if named == GLOBAL:
        return _of_run(run)
    if path.is_file() or (path / CONFIG).is_file():
        return path
    if not path.is_dir():
        raise FedpeftError(
            f"--adapter is {named!r:.200}, which does not exist: name {GLOBAL!r}, a PEFT folder, or the folder of the "
            f"server's result."
        )
    for place in PLACES:
        if (path / place / GLOBAL_ADAPTER).is_file():
            return path / place / GLOBAL_ADAPTER
    raise FedpeftError(
        f"{path} holds neither {CONFIG} nor {GLOBAL_ADAPTER}: name a PEFT folder, or the folder of the server's result."
    )


def load_with_head(model: SiteModel, adapter: Path, method: MethodSettings, state: SiteState) -> None:
    """Load an adapter together with a site's head, and with what else the method keeps at the site.

    It is the model with which the site would begin another round; what FedPIA would mix the adapter with is left out.
    An adapter whose head is federated brings its own.
    """
    received = _read(model, adapter)
    if not received:
        raise FedpeftError(f"{adapter} holds nothing, the sites of its run exchange nothing: leave --adapter out.")
    if broken := [key for key, tensor in received.items() if not tensor.isfinite().all()]:
        raise FedpeftError(f"{adapter} holds NaN or infinite values in {broken[0]}: take the adapter of another round.")
    own = model.trainable.state()
    chosen = without_head(received)
    if method.matched_layers is not None:  # the deepest backbone has layers that this one lacks
        numbers = LayerNumbers.of(model.backbone.num_layers, method.matched_layers)
        chosen = numbers.received(of_keys(chosen, numbers.to_send(own)))
    try:
        _check(chosen, own, whole=not method.rule.unequal_ranks)
        if model.products:
            model.products.set(chosen)
            chosen = fresh_factors({**own, **{key: t for key, t in chosen.items() if not is_factor(key)}}, seed=0)
        elif method.rule.unequal_ranks:
            chosen = fitted(chosen, own)
        _check(chosen, own)
        model.trainable.load_private(state.private)
        model.trainable.start(chosen, dict(state.adapter) or None)
        model.answering.head.load_state_dict(only_head(received) or state.head)
    except (FedpeftError, RuntimeError, KeyError) as error:
        raise FedpeftError(
            f"{adapter} does not fit this model, method {method.name!r} on {model.backbone.family}: "
            f"{' '.join(str(error).split()):.200}: name an adapter of the same method, settings and backbone."
        ) from error


def _of_run(run: Path) -> Path:
    if not (run / SIMULATED).is_dir():
        raise FedpeftError(
            f"--adapter is {GLOBAL!r}, and {run} is no workspace of `fedpeft simulate`: download the server's result "
            f"and name its folder."
        )
    file = run / SIMULATED / GLOBAL_ADAPTER
    if not file.is_file():
        raise FedpeftError(f"the run in {run} has no global adapter: leave --adapter out.")
    return file


def _read(model: SiteModel, adapter: Path) -> State:
    """Return the tensors under their keys in messages."""
    if adapter.is_file():
        try:
            return load_file(check_regular(adapter))
        except (SafetensorError, OSError) as error:
            raise FedpeftError(f"{adapter} cannot be read ({error}): download the server's result again.") from error
    from fedpeft.methods.adapters import read_config, read_state

    config, own = read_config(adapter), model.trainable.peft_config()
    if own is not None and config.peft_type != own.peft_type:
        theirs, ours = (str(getattr(one.peft_type, "value", one.peft_type)) for one in (config, own))
        raise FedpeftError(
            f"the adapter in {adapter} is of PEFT's type {theirs}, and this model's is {ours}: name one that the same "
            f"method has trained."
        )
    return read_state(adapter, config, model.backbone.family)


def _check(adapter: State, own: State, *, whole: bool = True) -> None:
    """Refuse an adapter with other keys than the model's own, or with other shapes if these are compared."""
    misfit = first_misfit(adapter, {key: tuple(tensor.shape) for key, tensor in own.items()})
    if misfit and misfit.what == "keys":
        lacks = bool(misfit.missing)
        raise FedpeftError(f"it {'lacks' if lacks else 'has'} {(misfit.missing or misfit.unknown)[0]}")
    if misfit and (whole or misfit.what != "shape"):
        here, there = (tuple(state[misfit.key].shape) for state in (own, adapter))
        raise FedpeftError(f"{misfit.key} is of shape {there} and not {here}")
