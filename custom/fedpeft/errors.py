# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The one exception that means: your input, not our bug."""


class FedpeftError(ValueError):
    """Bad input or setting, told in one sentence that names the value and the remedy.

    Args:
        sentence: for whoever sits where it was raised; it may hold values and paths, so it stays on that machine.
        setting: dotted name of the setting that is wrong, e.g. `training.device`; empty where there is none.
        code: what a site tells the server instead of the sentence, one of `fedpeft.privacy.problem_codes`; empty:
            `usual_code`, or that of a wrong setting where one is named.
    """

    usual_code = "job-refused"

    def __init__(self, sentence: str = "", *, setting: str = "", code: str = "") -> None:
        super().__init__(sentence)
        self.setting, self._code = setting, code

    @property
    def code(self) -> str:
        """What a site tells the server of it."""
        if self._code or not self.setting:
            return self._code or self.usual_code
        return "setting-refused"


class LocalError(FedpeftError):
    """One about what a site has on its disk."""

    usual_code = "state-unusable"


class SecureSumError(FedpeftError):
    """One about a secure sum that this site does not take part in."""

    usual_code = "secure-sum-refused"
