# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Wire keys and PEFT keys, and the way between them: string work on the table of sites, without a model.

wire   layer.3.output.down.weight                                              shared.rule
PEFT   base_model.model.encoder.layer.3.output.houlsby_adapter.down.weight     base_model.compacter_shared.rule
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from fedpeft.backbones.sites import locate, module_path
from fedpeft.errors import FedpeftError

PEFT_ROOT = "base_model.model."


class SiteKey(NamedTuple):
    """A wire key taken apart: ``layer.<layer>.<site>.<tensor>``."""

    layer: int
    site: str
    tensor: str


def parse_key(key: str) -> SiteKey | None:
    """Take a wire key apart; None for a key that is shared between layers (``shared.rule``).

    Raises:
        FedpeftError: the key is not a wire key.
    """
    match = re.fullmatch(r"layer\.(\d+)\.([a-z][a-z0-9_]*)\.([A-Za-z_.]+)", key)
    if match:
        return SiteKey(int(match[1]), match[2], match[3])
    if re.fullmatch(r"shared\.[a-z_]+", key):
        return None
    raise FedpeftError(
        f"key {key!r} is not an adapter key: it should read layer.<number>.<site>.<tensor> or shared.<name>."
    )


def wire_to_peft(key: str, templates: Mapping[str, str], method: str) -> str:
    """PEFT's name, in a saved file, of a wire tensor.

    Args:
        key: wire key.
        templates: role -> module path template.
        method: "houlsby", …, or "lora".

    Raises:
        FedpeftError: the key names a site that the templates do not.
    """
    parts = parse_key(key)
    if parts is None:
        return f"base_model.{method}_{key}"
    if parts.site not in templates:
        raise FedpeftError(f"key {key!r} names site {parts.site!r}, but the adapter's are {', '.join(templates)}.")
    path = module_path(templates[parts.site], parts.layer)
    tensor = f"lora_{parts.tensor}.weight" if method == "lora" else f"{method}_adapter.{parts.tensor}"
    return f"{PEFT_ROOT}{path}.{tensor}"


def peft_to_wire(key: str, templates: Mapping[str, str], method: str) -> str:
    """Wire key of a tensor in a saved PEFT file; the inverse of ``wire_to_peft``, with any parent path.

    Raises:
        FedpeftError: the key belongs to no site.
    """
    shared = re.fullmatch(rf"base_model\.{method}_(shared\.[a-z]+)", key)
    if shared:
        return shared[1]
    tensor = r"lora_([AB])\.weight" if method == "lora" else rf"{method}_adapter\.(.+)"
    match = re.fullmatch(rf"{re.escape(PEFT_ROOT)}(.+)\.{tensor}", key)
    place = locate(match[1], templates) if match else None
    if place is None:
        raise FedpeftError(f"tensor {key!r} belongs to no site of {method} ({', '.join(templates.values())}).")
    role, layer, _ = place
    return f"layer.{layer}.{role}.{match[2]}"
