# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Several bottleneck adapters side by side in a frozen backbone, some of them active at a time; AdapterFusion.

In AdapterFusion, attention over the adapters of one place decides for each token how much each adapter adds:

    h -> h + V sum_n s_n z_n        s = softmax_n((Q h + q) . K z_n)        z_n: what adapter n would add to h

In a federation two Pfeiffer adapters are fused: the site's own, which trains together with the fusion, and the received
global one, which is frozen. The own adapter is sent, averaged into the next global one, and kept at its site; the
fusion never leaves the site. A single adapter is not fused.

Source: Pfeiffer et al. 2021, AdapterFusion, section 3. As in the authors' code, V starts as the identity and has no
bias, and the dot products are not scaled. K has no bias here: it would add the same to every score of a token. The
authors' penalty on V's distance from the identity is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fedpeft.backbones.backbone import Backbone
from fedpeft.core.keys import PRIVATE
from fedpeft.core.states import State
from fedpeft.methods.adapters import adapter_parameters, adapter_slots, adapter_state, attach, load_adapter_state
from fedpeft.methods.bottleneck.config import Projection
from fedpeft.methods.bottleneck.layer import BottleneckLayer
from fedpeft.methods.first_values import FirstValues, normal
from fedpeft.methods.trainable import Beside, Trainable, Tuning

if TYPE_CHECKING:
    from fedpeft.methods.bottleneck.tuning import BottleneckTuning


class Branches:
    """Adapters by name, each with its own seed and tensors; the outputs of the active ones are averaged or fused."""

    def __init__(
        self, backbone: Backbone, tuning: BottleneckTuning, settings: Mapping[str, Any], seeds: Mapping[str, int]
    ) -> None:
        backbone.requires_grad_(False)
        self._peft: nn.Module = backbone.model
        self._asked = tuning.config(settings)
        for name, seed in seeds.items():
            self._peft = attach(self._peft, tuning.config(tuning.seeded(settings, seed)), name)
        self._peft.requires_grad_(False)
        self._first = next(iter(seeds))

    def parameters(self, name: str) -> dict[str, nn.Parameter]:
        return adapter_parameters(self._peft, name)

    def slots(self) -> dict[str, str]:
        return adapter_slots(self._peft, self._asked, self._first)

    def state(self, name: str) -> State:
        return adapter_state(self._peft, name)

    def load(self, name: str, state: State) -> None:
        load_adapter_state(self._peft, state, name)

    def use(self, *names: str) -> None:
        """Make these adapters the active ones without changing which parameters train."""
        for layer in self.layers():
            layer.use(names)

    def layers(self) -> Iterator[BottleneckLayer]:
        return (module for module in self._peft.modules() if isinstance(module, BottleneckLayer))

    def fusions(self) -> dict[str, nn.Parameter]:
        """Return by key the parameters that fuse the active adapters; empty if they are averaged."""
        return {
            f"{layer.place}.fusion.{name}": parameter
            for layer in self.layers()
            if layer.fusion is not None
            for name, parameter in layer.fusion.named_parameters()
        }


class SideBySide(Trainable):
    """Several adapters: one is sent, and a local and a received, frozen one make the site's model.

    The local one is private or the one that is sent; a fusion of the two is always private.
    """

    def __init__(self, branches: Branches, *, sent: str, local: str, received: str) -> None:
        self._branches, self._sent, self._local, self._received = branches, sent, local, received
        branches.use(local, received)
        self.train_only(None)

    def slots(self) -> dict[str, str]:
        return self._branches.slots()

    def parameters(self) -> Mapping[str, nn.Parameter]:
        local = {} if self._local == self._sent else self._branches.parameters(self._local)
        private = local | self._branches.fusions()
        return self._branches.parameters(self._sent) | {f"{PRIVATE}{key}": value for key, value in private.items()}

    def load(self, state: State) -> None:
        self._branches.load(self._sent, state)

    def start(self, received: State, own: State | None) -> None:
        """Load the received adapter as the one that is sent and as the frozen one."""
        self.restore(received, Beside(received))

    def beside(self) -> Beside:
        """Return the received adapter; the branches decide about its share."""
        return Beside(self._branches.state(self._received))

    def restore(self, state: State, beside: Beside) -> None:
        self.load(state)
        self._branches.load(self._received, beside.state)
        self._branches.use(self._local, self._received)


class AdapterBasedTuning(Tuning):
    """A method on top of a kind of adapter, with its settings; only these adapters are sent."""

    def __init__(self, base: BottleneckTuning | FusionTuning) -> None:
        self._base = base

    def check(self, settings: Mapping[str, Any]) -> None:
        self._base.check(settings)

    def first_values(self, settings: Mapping[str, Any], key: str, shape: tuple[int, ...]) -> FirstValues:
        return self._base.first_values(settings, key, shape)


LOCAL, RECEIVED = "own", "received"
STD = 0.02


class Fusion(nn.Module):
    """Attention over the outputs of several adapters at one place, in a stream of width d."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = Projection(width, width)
        self.key = Projection(width, width, bias=False)
        self.value = Projection(width, width, bias=False)

    def forward(self, h: Tensor, outputs: Sequence[Tensor]) -> Tensor:
        """Return the fused output: h (..., d) and N outputs (..., d) -> (..., d)."""
        stacked = torch.stack(tuple(outputs), dim=-2)
        query = self.query(h) @ self.key.weight  # (K z) . q = z . (K^T q): one product for all adapters
        shares = (stacked @ query.unsqueeze(-1)).squeeze(-1).softmax(-1)
        return self.value((shares.unsqueeze(-1) * stacked).sum(-2))


class FusedAdapters(SideBySide):
    """The site's own adapter and the received one in a frozen backbone, with their fusion."""

    def start(self, received: State, own: State | None) -> None:
        """Continue with the own adapter, in the first round the received one, and freeze the received one."""
        self.restore(received if own is None else own, Beside(received))


class FusionTuning(AdapterBasedTuning):
    def branches(self, backbone: Backbone, settings: Mapping[str, Any], seeds: Mapping[str, int]) -> Branches:
        """Put adapters with a fusion into a backbone; see `Branches`. The first seed is the fusion's as well."""
        branches = self._base.branches(backbone, settings, seeds)
        name, seed = next(iter(seeds.items()))
        for layer in branches.layers():
            like = layer.adapters[name].get_parameter("up.bias")
            fusion = Fusion(len(like)).to(like)
            if not like.is_meta:
                fusion.load_state_dict(_first_values(len(like), seed, layer.place))
            layer.fusion = fusion.requires_grad_(False)
        return branches

    def prepare(self, backbone: Backbone, settings: Mapping[str, Any], *, seed: int) -> Trainable:
        branches = self.branches(backbone, settings, {LOCAL: seed, RECEIVED: seed})
        return FusedAdapters(branches, sent=LOCAL, local=LOCAL, received=RECEIVED)


def _first_values(width: int, seed: int, place: str) -> dict[str, Tensor]:
    return {
        "query.weight": normal((width, width), STD, seed, f"{place}.fusion.query.weight"),
        "query.bias": torch.zeros(width),
        "key.weight": normal((width, width), STD, seed, f"{place}.fusion.key.weight"),
        "value.weight": torch.eye(width),
    }
