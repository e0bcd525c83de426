# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""LoRA is PEFT's own; this says where its matrices stand on the wire: ``layer.<l>.<query|value>.A`` and ``.B``."""

from peft import LoraConfig
from peft.tuners.lora import LoraLayer
from peft.utils.other import get_pattern_key
from torch import nn

from fedpeft.adapters.targets import roles_of
from fedpeft.backbones.sites import SITES, locate, site_templates
from fedpeft.errors import FedpeftError


def lora_templates(config: LoraConfig, family: str | None) -> dict[str, str]:
    """Role -> module path template of the projections that a LoRA configuration adapts.

    Raises:
        FedpeftError: the family is unknown, or ``target_modules`` names something that is not a role of it.
    """
    targets = config.target_modules
    if isinstance(targets, str) and (templates := roles_of(targets)):
        return templates
    if not targets or isinstance(targets, str):
        raise FedpeftError(
            f"lora: target_modules={targets!r} must list roles or modules, for instance ['query', 'value'], or be made "
            "by fedpeft.adapters.config('lora', target_modules={role: path}): other patterns have no names on the wire."
        )
    if family is None:
        raise FedpeftError("lora: give the model family (model_type, such as 'vilt').")
    templates = {}
    for target in sorted(targets):
        named = {role: path for role, path in SITES.get(family, {}).items() if path.endswith(f".{target}")}
        templates |= named or site_templates(family, [target])
    return templates


def complete_targets(model: nn.Module, config: LoraConfig) -> None:
    """Write the module names of the model's family into a configuration that lists roles, as PEFT needs them.

    Raises:
        FedpeftError: a place is not in the model.
    """
    family = getattr(getattr(model, "config", None), "model_type", None)
    targets = config.target_modules
    if (isinstance(targets, str) and not roles_of(targets)) or not targets:
        return  # PEFT's own forms
    if not isinstance(targets, str) and family not in SITES:
        return
    templates = lora_templates(config, family)
    paths = [path for path, _ in model.named_modules()]
    for role, template in templates.items():
        if not any(locate(path, {role: template}) for path in paths):
            raise FedpeftError(
                f"lora: {role!r} is {template} in target_modules, which matches no module of {type(model).__name__}: "
                "name its projections with target_modules={role: path}."
            )
    if not isinstance(targets, str):
        config.target_modules = {template.rpartition(".")[2] for template in templates.values()}


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
        place = locate(path, templates)
        if place is None:
            raise FedpeftError(
                f"lora: module {path} has no role in model family {family!r}, so it has no name on the wire: use "
                "target_modules={role: path}."
            )
        matrices = {"A": module.lora_A[adapter_name].weight, "B": module.lora_B[adapter_name].weight}
        sites[f"layer.{place[1]}.{place[0]}"] = matrices
    return sites
