# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Federated parameter-efficient fine-tuning of vision-language models on NVIDIA FLARE.

``import fedpeft`` is light: it imports neither torch nor PEFT, and it sees to it that PEFT knows fedpeft's adapters
from the moment that PEFT is imported, whichever of the two comes first.
"""

import wrapt

__version__ = "0.1.0"

wrapt.register_post_import_hook("fedpeft.adapters.registration:register_all", "peft")


def __getattr__(name: str):
    # torch and PEFT cost seconds: whoever never loads an adapter never pays for them
    if name == "load_adapter":
        from fedpeft.adapters.folder import load_adapter

        return load_adapter
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
