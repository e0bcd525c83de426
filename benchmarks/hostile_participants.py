# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Sites that lie in handshake or updates, a server that lies in its orders, and one without checks, over mutual TLS."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import lying_processes
from measured import ROOT
from running_consortium import GOOD, HOSTILE, Consortium, Row, kits, outcome, running_consortium


def rows() -> Iterator[Row]:
    """All of it, on one consortium."""
    with running_consortium() as consortium:
        for part in PARTS:
            yield from part(consortium)


OTHERS = ("vqa-med-2019", "vqa-med-2020")
HONEST, LIARS = (GOOD, OTHERS[0]), (HOSTILE, OTHERS[1])
SCHEDULED = ("schedule.solver=exact", "schedule.budget=4", "schedule.score_samples=8")
FIRST = {  # sites, the liar first, and what else is set where one site's first adapter goes to all
    "1 of 3 sites": ((LIARS[0], *HONEST), SCHEDULED),
    "1 of 2 sites": ((LIARS[0], HONEST[0]), SCHEDULED),
    "1 of 2 sites, method.matched_layers": ((LIARS[0], HONEST[0]), ("method.matched_layers=12",)),
}
REPLYING = {"1 of 2": (HONEST[0], LIARS[0]), "2 of 3": (HONEST[0], *LIARS), "2 of 4": (*HONEST, *LIARS)}


def majority_rows() -> Iterator[Row]:
    """Sites that lie where the others cannot outvote them, or whose adapter all sites start from."""
    with running_consortium((*HONEST, *LIARS)) as consortium:
        for site in LIARS:
            (consortium.kits / site / "local" / "privacy.json").unlink()
            consortium.restart(consortium.kits / site, **_lying(consortium))
        consortium.wait_for_sites()
        for who, (sites, chosen) in FIRST.items():
            for name in lying_processes.STARTS:
                yield _with_lies(consortium, f"{who}: as the start of all, {name}", sites, *chosen, hello=name)
        sites = (*LIARS, HONEST[0])
        name = next(reversed([one for one in lying_processes.STARTS if "and their digest" in one]))
        yield _with_lies(consortium, f"2 of 3 sites: as the start of all, {name}", sites, *SCHEDULED, hello=name)
        for who, sites in REPLYING.items():
            for name in lying_processes.UPDATES:
                yield _with_lies(consortium, f"{who} sites, in every round: {name}", sites, train=name)
        for who in ("1 of 2", "2 of 4"):
            for name in lying_processes.FORMS:
                yield _with_lies(consortium, f"{who} sites, in the handshake: {name}", REPLYING[who], hello=name)


def _with_lies(consortium: Consortium, name: str, sites: Sequence[str], *overrides: str, **lies: str) -> Row:
    _lying(consortium, **lies)
    found = consortium.ended(consortium.submit(f"federation.sites=[{', '.join(sites)}]", *overrides))
    started = found.get("start", {})
    said = "".join(f"{one} " for one in started.get("differing", {}).values())
    return outcome(name, found, before=said, sites=sites)


def _lying(consortium: Consortium, **lies: Any) -> dict[str, str]:
    """The environment of a participant whose jobs' processes tell these lies."""
    folder = consortium.folder / "lies"
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(lying_processes.CUSTOM)
    (folder / "lies.json").write_text(json.dumps({"hello": "", "rounds": {}, **lies}))
    paths = [str(folder), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")]
    return {lying_processes.LIES: str(folder / "lies.json"), "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def _hellos(consortium: Consortium) -> Iterator[Row]:
    """A site with a certificate of its own whose code lies in the handshake, past its own filters."""
    kit = consortium.kits / HOSTILE
    filters = (kit / "local" / "privacy.json").rename(consortium.folder / "privacy.json")
    consortium.restart(kit, **_lying(consortium))
    for name in lying_processes.HELLOS:
        _lying(consortium, hello=name)
        yield outcome(f"in a site's handshake: {name}", consortium.ended(consortium.submit()))
    filters.rename(kit / "local" / "privacy.json")
    consortium.restart(kit)


def _orders(consortium: Consortium) -> Iterator[Row]:
    """A hostile server's orders to one site: a lie in each round of a job, then jobs that begin with one."""
    server, own = consortium.kits / "server", consortium.kits / GOOD / "fedpeft"
    consortium.ended(consortium.submit("training.seed=1"))
    other = consortium.lineages(GOOD)[-1]  # the newest: earlier parts left theirs
    consortium.stop(server)
    lies = {
        "target": GOOD,
        "other": other,
        "rounds": {str(n): name for n, name in enumerate(lying_processes.ORDERS, 2)},
    }
    consortium.start(server, **_lying(consortium, **lies))
    consortium.wait_for_sites()
    kept = _content(own / other)
    found = consortium.ended(consortium.submit(f"training.rounds={len(lying_processes.ORDERS) + 1}"))
    for number, name in lies["rounds"].items():
        said = [one["what"] for one in found.get("faults", []) if one["round"] == int(number)]
        taken = [entry["sites"].keys() for entry in found["finished"][int(number) - 1 : int(number)]]
        replied = (
            "the job ended before" if not taken else "it trained" if GOOD in taken[0] else "its reply of that round"
        )
        yield f"round {number}: {name}", "; ".join(said) or found.get("reason", "nothing was noticed"), replied
    for name in lying_processes.GREETINGS:
        _lying(consortium, **lies | {"hello": name, "rounds": {}})
        yield outcome(f"in the server's handshake: {name}", consortium.ended(consortium.submit()))
    same = "is as it was" if _content(own / other) == kept else "differs"
    yield "after all of them", f"the site's state of the other job {same}", "nothing" if "was" in same else "it"


def _content(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"}


def _unguarded(consortium: Consortium) -> Iterator[Row]:
    """A FLARE server without fedpeft's checks of jobs sends to sites that have them."""
    server, mark = consortium.kits / "server", consortium.folder / "ran"
    consortium.stop(server)
    _edit(server / "local" / "resources.json.default", _without_checks)
    _edit(
        server / "local" / "authorization.json.default",
        lambda rights: rights["permissions"]["lead"].update(byoc="any", submit_job="any"),
    )
    consortium.start(server)
    consortium.wait_for_sites()
    for name, change in _foreign_jobs(mark).items():
        try:
            job = consortium.submit(change=change)
        except Exception as error:  # FLARE's exceptions share no class
            yield name, f"that server refuses it, too: {str(error)[:200]}", "nothing"
            continue
        status = consortium.lead.wait_for_job(job, timeout=400, poll_interval=0.3)["status"]
        time.sleep(2)  # FLARE notes the sites' answers afterwards
        answers = consortium.lead.get_job_meta(job).get("job_deploy_detail") or []
        said = sorted({one.partition(": ")[2] for one in answers if GOOD in one or HOSTILE in one})
        kept = [
            file for folder in (server, consortium.folder / "storage") for file in folder.rglob("*") if file.is_file()
        ]
        out = ["a variable of the site"] * any(kits.SECRET.encode() in file.read_bytes() for file in kept)
        lost = ", ".join(["code ran at a site"] * mark.exists() + out) or "nothing"
        yield f"it sends {name}", f"{status}; the sites: {'; '.join(said)[:300]}", lost
        mark.unlink(missing_ok=True)


def _edit(file: Path, change: Callable[[dict], Any]) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def _without_checks(settings: dict[str, Any]) -> None:
    settings["class_list_enforcement_mode"] = "off"
    settings["components"] = [
        one for one in settings["components"] if "fedpeft." not in one["path"] or one["id"] == "job_manager"
    ]


def _foreign_jobs(mark: Path) -> dict[str, Callable[[Path], Any]]:
    def client(edit: Callable[[dict], Any]) -> Callable[[Path], Any]:
        return lambda job: _edit(job / "app" / "config" / "config_fed_client.json", edit)

    def executor(settings: dict) -> dict:
        return settings["executors"][0]["executor"]

    def with_code(job: Path) -> None:
        (job / "app" / "custom").mkdir()
        (job / "app" / "custom" / "own.py").write_text(f"open({str(mark)!r}, 'w').close()\nclass Own: pass\n")
        client(lambda settings: executor(settings).update(path="own.Own", args={}))(job)

    launcher = "nvflare.app_common.launchers.subprocess_launcher.SubprocessLauncher"
    command = {"path": "subprocess.check_call", "args": {"args": ["touch", str(mark)]}}
    cheat = [{"tasks": ["*"], "filters": [{"path": "nvflare.app_common.filters.svt_privacy.SVTPrivacy"}]}]
    return {
        "a job with code of its own": with_code,
        "another executor of FLARE, which runs a command": client(
            lambda settings: executor(settings).update(path=launcher, args={"script": f"touch {mark}"})
        ),
        "a function of Python that runs a command, as a component": client(
            lambda settings: settings["components"].append({"id": "other", **command})
        ),
        "filters of its own": client(lambda settings: settings.update(task_result_filters=cheat)),
        "a text that reads a variable of the site": client(
            lambda settings: executor(settings)["args"]["method"].update(name="{$DB_PASSWORD}")
        ),
    }


PARTS = (_hellos, _orders, _unguarded)
