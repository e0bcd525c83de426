# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Register fedpeft's methods with PEFT. Only this file uses internals of PEFT for which there is no public hook.

`peft.utils.register_peft_method` takes a new configuration and tuner class, but refuses a name that is not in the enum
`PeftType`, which a plugin cannot extend. `_add_peft_type` does so, only for tested versions of PEFT.
"""

from __future__ import annotations

import enum
import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from fedpeft.core.errors import FedpeftError
from fedpeft.methods import METHODS

if TYPE_CHECKING:
    from peft import PeftConfig
    from peft.tuners.tuners_utils import BaseTuner

TESTED_PEFT = ("0.21.2",)


def register_all(peft: ModuleType) -> None:
    """Register every method with its own PEFT tuner, plugins included; called once, as soon as PEFT has been imported.

    A consortium's site registers only plugins that its site policy lists, and those when they are used.
    """
    check_version(peft.__version__)
    for name, method in METHODS.usable():
        try:
            # each module calls register() at its end; importing is enough, and harmless if it is only partly imported
            # because it imported PEFT
            if method.peft_tuner:
                importlib.import_module(method.home.partition(":")[0])
        except Exception as error:  # a broken plugin must not break `import peft`
            METHODS.skip(name, error)


def check_version(version: str) -> None:
    """Refuse a PEFT whose minor version (`0.21`) is not among the tested ones."""
    minors = sorted({tested.rpartition(".")[0] for tested in TESTED_PEFT})
    if version.split(".")[:2] not in [minor.split(".") for minor in minors]:
        raise FedpeftError(
            f"peft {version} is installed, but fedpeft's adapters are tested with peft {', '.join(TESTED_PEFT)} only: "
            f"install it with 'pip install peft=={TESTED_PEFT[-1]}'."
        )


def register(name: str, config_cls: type[PeftConfig], model_cls: type[BaseTuner]) -> None:
    """Add one method to PEFT, so that `get_peft_model` and `PeftModel.from_pretrained` know it."""
    from peft.utils import register_peft_method
    from peft.utils.peft_types import PeftType

    if name not in METHODS.names():
        raise FedpeftError(
            f"method {name!r} is not registered: add it in fedpeft/methods/__init__.py, or as an entry point "
            f"{METHODS.group!r} of your package."
        )
    if name.upper() in PeftType.__members__:
        raise FedpeftError(f"PEFT already has a method named {name!r}: choose another name.")
    _add_peft_type(PeftType, name.upper())
    register_peft_method(name=name, config_cls=config_cls, model_cls=model_cls)


def _add_peft_type(peft_type: type[enum.Enum], name: str) -> None:
    """Append `name` with value `name` to PEFT's string enum, as its class definition would do."""
    member = str.__new__(peft_type, name)
    member._name_ = name
    member._value_ = name
    member.__objclass__ = peft_type
    member._sort_order_ = len(peft_type._member_names_)
    peft_type._member_names_.append(name)
    peft_type._member_map_[name] = member
    peft_type._value2member_map_[name] = member
    type.__setattr__(peft_type, name, member)  # EnumMeta's own __setattr__ refuses every member name
