# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""How long a round waits for a site that does not answer, by what the server knows of it; the clock is the test's."""

from types import SimpleNamespace

import pytest
from harness import Harness

from fedpeft.flare import controller as module
from fedpeft.flare.hardening import message_limits
from fedpeft.flare.returning_sites import AWAY, RETURNED

ABSENT, SILENT_ROUND, GRACE, TIMEOUT = "chest", 2, 60, 3600
ENDED = {"site": ABSENT, "reason": "while it started"}


class Waiting:
    """A clock, the tasks that stand while it runs, and what becomes known of the site that has not answered."""

    def __init__(self, monkeypatch):
        self.now, self.tasks, self.later, self.canceled, self.disconnected = 0.0, {}, [], [], None
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep))
        monkeypatch.setattr(Harness, "get_num_standing_tasks", lambda harness: len(self.tasks))
        monkeypatch.setattr(Harness, "cancel_all_tasks", lambda harness: self.tasks.clear())
        monkeypatch.setattr(Harness, "cancel_task", lambda harness, task: self.canceled.append(self.tasks.pop(task)))
        monkeypatch.setattr(Harness, "get_client_disconnect_time", lambda harness, site: self.disconnected)
        send = Harness.send_model

        def sent(harness, task_name, data, targets, timeout, callback):
            (site,) = targets
            if site == ABSENT and data.current_round == SILENT_ROUND:
                harness._tasks[site] = site
                self.tasks[site] = site
                self.answers = lambda: send(harness, task_name, data, targets, timeout, callback)
                self.harness = harness
            else:
                send(harness, task_name, data, targets, timeout, callback)

        monkeypatch.setattr(Harness, "send_model", sent)

    def sleep(self, seconds):
        self.now += seconds
        for event in [event for event in self.later if event[0] <= self.now]:
            self.later.remove(event)
            event[1](self)
        if self.now > TIMEOUT:
            self.tasks.clear()


def ended(waiting):
    waiting.harness._away_sites._note_absence(AWAY, ENDED, None)


def disconnected(waiting):
    waiting.disconnected = 1.0


def unknown(waiting):
    """FLARE does not list a site that it did not start in the job."""
    waiting.harness.fl_ctx.get_engine().get_client_from_name = lambda site: None


def refused(waiting):
    message_limits._refused[f"{ABSENT}.job"] = "more than 1 MB, which was not read."


def returned(waiting):
    context = SimpleNamespace(get_engine=lambda: SimpleNamespace(sync_clients_from_main_process=lambda: None))
    waiting.harness._away_sites._note_return(RETURNED, ENDED, context)


def answers(waiting):
    waiting.answers()
    waiting.tasks.clear()


NAMED = f"site {ABSENT} is away"
CASES = {
    "nothing is known of it": ([], 2, GRACE, "raise federation.grace"),
    "its process has ended": ([(0, ended)], 2, 0, NAMED),
    "FLARE calls it disconnected": ([(0, disconnected)], 2, 0, NAMED),
    "FLARE did not start it": ([(0, unknown)], 2, 0, NAMED),
    "its reply is refused unread": ([(0, refused)], 2, 0, f"site {ABSENT} sent more than 1 MB"),
    "its reply is refused unread, below the quorum": ([(0, refused)], 3, 0, "quorum is 3"),
    "its process has ended, below the quorum": ([(0, ended)], 3, GRACE, NAMED),
    "it is disconnected later, below the quorum": ([(90, disconnected)], 3, 90 + GRACE, NAMED),
    "it returns in time": ([(0, ended), (50, returned), (500, answers)], 3, 500, ""),
    "it returns and does not answer": ([(0, ended), (50, returned)], 3, TIMEOUT, "sent no usable reply"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_round_waits_for_a_site_only_while_it_may_answer(run, monkeypatch, case):
    events, quorum, seconds, reason = CASES[case]
    waiting = Waiting(monkeypatch)
    waiting.later = list(events)
    _, manifest, history = run(quorum=quorum, rounds=3)
    assert seconds <= waiting.now < seconds + 2
    assert manifest["status"] == ("completed" if quorum == 2 or not reason else "failed")
    said = [manifest.get("reason", ""), *(fault["what"] for fault in manifest["faults"])]
    assert any(reason in one for one in said)
    assert len(history["rounds"]) == (3 if manifest["status"] == "completed" else 1)
    assert waiting.canceled == [ABSENT] * ("refused" in case)
    if manifest["status"] == "completed":
        assert ABSENT in history["rounds"][2]["sites"]
