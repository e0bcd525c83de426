# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Training steps of others on ViLT and ViT, with which ours is compared: transformers with PEFT, and FedDAT's.

FedDAT's is transcribed from its authors' code (github.com/HaokunChen245/FedDAT, `task_trainer.py`, `adapter.py`), with
AdapterHub's Houlsby adapters, which have two places in a layer, around transformers' ViLT of today.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import ViltConfig, ViltForQuestionAnswering, ViTConfig, ViTForImageClassification

Inputs = dict[str, Tensor]
RATE, DECAY = 1e-4, 0.01


class PeftLora:
    """transformers' model for questions with PEFT's LoRA on query and value, its own loss, and torch's AdamW."""

    def __init__(self, config: ViltConfig) -> None:
        self._train(ViltForQuestionAnswering(config), ["query", "value"])
        self.classes = config.num_labels

    def _train(self, model: nn.Module, modules: list[str]) -> None:
        tuner = LoraConfig(r=4, lora_alpha=8, target_modules=modules, modules_to_save=["classifier"])
        self.model = get_peft_model(model, tuner).train()
        self.optimizer = torch.optim.AdamW(
            [p for p in self.model.parameters() if p.requires_grad], lr=RATE, weight_decay=DECAY, foreach=True
        )

    def step(self, inputs: Inputs, target: Tensor) -> float:
        """Train on one batch; return its loss."""
        return self._descend(self.model(**inputs, labels=F.one_hot(target, self.classes).float()).loss)

    def _descend(self, loss: Tensor) -> float:
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.item()


class PeftLoraVit(PeftLora):
    """The same with transformers' ViT for classes of images."""

    def __init__(self, config: ViTConfig) -> None:
        self._train(ViTForImageClassification(config), ["q_proj", "v_proj"])

    def step(self, inputs: Inputs, target: Tensor) -> float:
        """Train on one batch; return its loss."""
        return self._descend(self.model(**inputs, labels=target).loss)


class DualAdapter(nn.Module):
    """FedDAT's adapter: `gating` adds the mean of adapters 0 and 2, otherwise the active one is added."""

    def __init__(self, width: int, neurons: int, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.activation, self.gating, self.active = activation, False, "1"
        self.down = nn.ModuleDict({name: nn.Linear(width, neurons) for name in "012"})
        self.up = nn.ModuleDict({name: nn.Linear(neurons, width) for name in "012"})
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.02) if parameter.dim() > 1 else nn.init.zeros_(parameter)

    def activate(self, name: str) -> None:
        """Let one adapter train."""
        self.active = name
        for part in (self.down, self.up):
            for other in "012":
                part[other].requires_grad_(other == name)

    def added(self, hidden: Tensor, name: str) -> Tensor:
        return self.up[name](self.activation(self.down[name](hidden)))

    def forward(self, hidden: Tensor) -> Tensor:
        if not self.gating:
            return hidden + self.added(hidden, self.active)
        outs = [self.added(hidden, name) for name in "02"]
        weights = torch.ones([*outs[0].shape[:-1], 2], device=hidden.device) * 0.5
        total = weights[:, :, 0].unsqueeze(-1) * outs[0]
        total += weights[:, :, 1].unsqueeze(-1) * outs[1]
        return hidden + total


class Adapted(nn.Module):
    """A block of ViLT with an adapter after it."""

    def __init__(self, block: nn.Module, adapter: DualAdapter) -> None:
        super().__init__()
        self.block, self.adapter = block, adapter

    def forward(self, hidden: Tensor, inputs: Tensor) -> Tensor:
        return self.adapter(self.block(hidden, inputs))


class FedDat:
    """FedDAT's step: a teacher without gradients, a step of adapter 1, a step of adapter 0 beside the frozen 2."""

    def __init__(self, config: ViltConfig) -> None:
        self.model = ViltForQuestionAnswering(config).requires_grad_(False).train()
        self.model.classifier.requires_grad_(True)
        width = config.hidden_size
        for layer in self.model.vilt.encoder.layer:
            for block in (layer.attention, layer):
                block.output = Adapted(block.output, DualAdapter(width, width // 16, F.silu))
        self.adapters = [module for module in self.model.modules() if isinstance(module, DualAdapter)]
        for adapter in self.adapters:
            for part in (adapter.down, adapter.up):
                part["2"].load_state_dict(part["1"].state_dict())
        parameters = list(self.model.classifier.parameters())
        for adapter in self.adapters:
            parameters += [p for part in (adapter.down, adapter.up) for name in "01" for p in part[name].parameters()]
        self.optimizer = torch.optim.AdamW(
            parameters, lr=RATE, weight_decay=DECAY, eps=1e-8, betas=(0.9, 0.98), foreach=True
        )
        self.classes = config.num_labels

    def use(self, name: str, *, gating: bool) -> None:
        for adapter in self.adapters:
            adapter.activate(name)
            adapter.gating = gating

    def step(self, inputs: Inputs, target: Tensor) -> float:
        """Train on one batch; return the loss of adapter 0 beside adapter 2."""
        labels = F.one_hot(target, self.classes).float()
        self.use("1", gating=True)
        with torch.no_grad():
            teacher = self.model(**inputs).logits
        self.use("1", gating=False)
        shared = self.model(**inputs).logits
        self._descend(shared, labels, teacher)
        self.use("0", gating=True)
        local = self.model(**inputs).logits
        return self._descend(local, labels, shared.detach())

    def _descend(self, logits: Tensor, labels: Tensor, teacher: Tensor) -> float:
        loss = F.binary_cross_entropy_with_logits(logits, labels) * labels.shape[1]
        soft = F.kl_div(F.log_softmax(logits / 3, 1), F.softmax(teacher / 3, 1), reduction="batchmean") * 9
        self.optimizer.zero_grad(set_to_none=True)
        ((loss + soft) / 2).backward()
        self.optimizer.step()
        return loss.item()
