# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The exceptions for wrong input, settings and data; any other exception is a bug of fedpeft."""

from __future__ import annotations


class FedpeftError(ValueError):
    """Wrong input or a wrong setting; the message is one sentence that names the value and the remedy.

    Args:
        sentence: for the user of this machine; it may hold values and paths, so it does not leave the machine.
        setting: dotted name of the wrong setting, e.g. `training.device`; empty if it is not about a setting.
        code: what a site sends to the server instead of the sentence, one of `fedpeft.protocol.fields`; empty:
            `default_code`, or the code of a wrong setting if one is named.
    """

    default_code = "job-refused"

    def __init__(self, sentence: str = "", *, setting: str = "", code: str = "") -> None:
        super().__init__(sentence)
        self.setting, self._code = setting, code

    @property
    def code(self) -> str:
        """What a site sends to the server instead of the sentence."""
        if self._code or not self.setting:
            return self._code or self.default_code
        return "setting-refused"


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out; on a CPU torch reports that in the text of a `RuntimeError`."""
    # by the name of the class, so that torch need not be imported
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))


class LocalError(FedpeftError):
    """A problem with what a site has on its disk."""

    default_code = "state-unusable"


class SecureSumError(FedpeftError):
    """A secure sum that this site does not take part in."""

    default_code = "secure-sum-refused"


class DataError(LocalError):
    """A folder, file, row or setting is wrong; the message names it and the remedy, never a question or an answer."""

    default_code = "data-unusable"


class UnreadableImage(DataError):
    """An image that cannot be shown to the model, or not as it was meant: its path or place, why, and what to do."""

    def __init__(self, sentence: str = "", *, image: str = "", why: str = "", remedy: str = "") -> None:
        super().__init__(sentence)
        self.image, self.why, self.remedy = image, why, remedy

    @classmethod
    def of(cls, image: object, why: str, remedy: str) -> UnreadableImage:
        """Return the error whose sentence is made of an image's name, a reason and what to do."""
        return cls(f"The image {image} {why}; {remedy}.", image=str(image), why=why, remedy=remedy)
