# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What a site may report of a problem: a code of this list and the name of a setting, never a value or free text.

The site sends the code, the server prints the sentence. The details (values, paths, exception) stay in the site's own
log, in its `problem.json`, and in what `fedpeft doctor` prints there.
"""

from __future__ import annotations

from fedpeft.job.setting_names import known

SETTING = "{setting}"
CODES = {
    "setting-refused": "it cannot use the job's value of {setting}: correct the job; the site's log has the details.",
    "setting-not-allowed": "its own file does not allow what the job sets in {setting}: change the job, or agree with "
    "the site on another local/fedpeft.json.",
    "job-refused": "it cannot do what the job asks; the site's log has the details.",
    "message-refused": "it cannot read the server's message: install the same fedpeft version everywhere.",
    "message-too-large": "the server's message is larger than its own file allows (most_message_mb).",
    "site-file-missing": "it has no local/fedpeft.json, which every site needs: `fedpeft doctor` at the site says how "
    "to write it.",
    "site-file-unusable": "its own local/fedpeft.json cannot be used: `fedpeft doctor` at the site says why.",
    "data-unusable": "its data cannot be used; the site's log has the details.",
    "data-too-few": "it holds less data than its own file requires of a job that it takes part in.",
    "plugin-unusable": "a plugin that the job names cannot be used there; the site's log has the details.",
    "backbone-unusable": "it cannot load the backbone: `fedpeft doctor` at the site says why.",
    "state-unusable": "what it kept of earlier rounds cannot be used; the site's log has the details.",
    "state-of-another-job": "what it kept under this name belongs to another job: submit the job without resume_from.",
    "state-in-use": "another job still uses what it kept under this name: abort that job, or wait for its end.",
    "state-full": "it keeps as much of earlier jobs as its own file allows (kept_gib): the site has to make room.",
    "disk-full": "its disk is full: the site has to make room there; a job that ended goes on with resume_from=latest.",
    "disk-unwritable": "it cannot write to its own disk; the site's log names the file.",
    "order-refused": "the server asked it for something that the job's own settings do not provide for.",
    "adapter-outdated": "it lacks the adapter that this round builds on: it will be sent whole in the next round.",
    "training-diverged": "its training diverged: lower training.learning_rate.",
    "training-failed": "an error in its training code; the site's log has the traceback.",
    "training-process-lost": "its training process ended before it answered, perhaps for lack of memory; the "
    "site's log has the details.",
    "out-of-memory": "a batch does not fit into its memory: lower training.batch_size.",
    "secure-sum-refused": "it does not take part in the secure sum as the server proposes it; the site's log says why.",
    "reply-blocked": "its own filter blocked the reply; the site's log says what was in it.",
}


def is_known(code: object, setting: object) -> bool:
    """Whether the code is one of `CODES` and the setting is declared or empty."""
    return isinstance(code, str) and code in CODES and (setting == "" or known(setting))


def sentence(code: object, setting: object = "") -> str:
    """The sentence that the server prints for a site's problem; an unknown code or setting is not repeated.

    Args:
        code: as received, of any type.
        setting: as received, of any type.
    """
    if not is_known(code, setting):
        return "it sent an unknown problem code: install the same fedpeft version everywhere."
    return CODES[str(code)].replace(SETTING, str(setting) or "a setting")
