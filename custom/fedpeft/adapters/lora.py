# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""LoRA is PEFT's own; this says where its matrices stand on the wire: ``layer.<l>.<query|value>.A`` and ``.B``."""

from peft import LoraConfig
from peft.tuners.lora import LoraLayer
from peft.utils.other import get_pattern_key
from torch import nn

from fedpeft.backbones.sites import locate, site_templates
from fedpeft.errors import FedpeftError


def lora_templates(config: LoraConfig, family: str | None) -> dict[str, str]:
    """Role -> module path template of the projections that a LoRA configuration adapts.

    Raises:
        FedpeftError: the family is unknown, or ``target_modules`` names something that is no role of it.
    """
    if family is None:
        raise FedpeftError("lora: give the model family (model_type, such as 'vilt')")
    targets = config.target_modules
    if not targets or isinstance(targets, str):
        raise FedpeftError(f"lora: target_modules={targets!r} must list sites, for instance ['query', 'value']")
    return site_templates(family, sorted(targets))


def lora_layers(config: LoraConfig, num_layers: int) -> list[int]:
    """Numbers of the transformer layers that a LoRA configuration adapts."""
    chosen = config.layers_to_transform
    if chosen is None:
        return list(range(num_layers))
    return [chosen] if isinstance(chosen, int) else sorted(chosen)


def lora_rank(config: LoraConfig, path: str) -> int:
    """Rank at one module path; PEFT's ``rank_pattern`` may differ from ``r``."""
    return config.rank_pattern.get(get_pattern_key(config.rank_pattern.keys(), path), config.r)


def lora_parameters(
    model: nn.Module, config: LoraConfig, family: str | None, adapter_name: str
) -> dict[str, dict[str, nn.Parameter]]:
    """Site ("layer.3.query") -> {"A": (r, d_in), "B": (d_out, r)} of a model with LoRA layers."""
    templates = lora_templates(config, family)
    sites = {}
    for path, module in model.named_modules():
        if not isinstance(module, LoraLayer) or adapter_name not in module.lora_A:
            continue
        found = locate(path, templates)
        if found is None:
            raise FedpeftError(f"lora: module {path} is no site of model family {family!r}: it has no name on the wire")
        matrices = {"A": module.lora_A[adapter_name].weight, "B": module.lora_B[adapter_name].weight}
        sites[f"layer.{found[1]}.{found[0]}"] = matrices
    return sites
