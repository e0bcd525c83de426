# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Federated parameter-efficient fine-tuning of vision-language models on NVIDIA FLARE.

`import fedpeft` imports neither torch nor PEFT. It registers fedpeft's adapters with PEFT as soon as PEFT is
imported, whichever of the two comes first. It switches off transformers' kernels from the hub, which are compiled code.
"""

import os

import wrapt

from fedpeft.core.registry import lazy_module

__version__ = "0.1.0"

os.environ["USE_HUB_KERNELS"] = "0"  # transformers reads it when it is imported
wrapt.register_post_import_hook("fedpeft.methods.peft_types:register_all", "peft")

# torch and PEFT cost seconds: only a program that uses an adapter imports them
_HOME = {"load_adapter": "methods.adapters", "merge": "inference.merging"}

__all__ = list(_HOME)
__getattr__, __dir__ = lazy_module(__name__, _HOME)
