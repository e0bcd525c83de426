# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A site's training process, `python -m fedpeft.site.training_process FD`: answers requests on a pipe.

It ends when the pipe closes, so that it never outlives the executor, however that one ends. The site policy limits
its memory.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import queue
import resource
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpeft.answering import ANSWERING
from fedpeft.backbones import is_tiny
from fedpeft.core.registry import only_plugins
from fedpeft.core.settings import build
from fedpeft.core.text import CleanedStream, StepLines, one_line
from fedpeft.data.registry import is_procedural
from fedpeft.data.remarks import cut_texts, remarks, unread_questions
from fedpeft.job.site_policy import FILE, SitePolicy, keep_to
from fedpeft.site.connection import Failure, Frame, receive, send, unpack

if TYPE_CHECKING:
    from fedpeft.site.learner import Learner
    from fedpeft.site.site_model import SharedModels

GIB = 2**30


def limit_memory(gib: float) -> None:
    """Limit this process's main memory and its share of each GPU; the limit cannot be raised again.

    RLIMIT_DATA counts private writable memory. RLIMIT_AS (address space) would also count unused reservations of CUDA.

    Args:
        gib: above 0, in GiB.
    """
    limit = int(gib * GIB)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    import torch

    for number in range(torch.cuda.device_count()):
        whole = torch.cuda.get_device_properties(number).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit / whole), number)


LEARNER_BYTES = 2**20  # a learner without its images and its backbone
MAX_HELD_BYTES = 256 * 2**20  # all learners of sites that take turns in one process
OPEN, INTRODUCE, SCORE, TRAIN = "open", "introduce", "score", "train"
State = dict[str, Any]
Answer = tuple[dict[str, Any], State]


def main() -> None:
    """Serve the pipe whose file descriptor is the only argument."""
    faulthandler.enable()
    only_plugins({})  # until the site policy is known, with the first request
    connection = Connection(int(sys.argv[1]))
    frames: queue.SimpleQueue[Frame] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(connection, frames), daemon=True).start()
    with contextlib.suppress(Exception):  # takes seconds, so before the first request; raised again when it is needed
        import fedpeft.site.learner  # noqa: F401
    serve(frames.get, lambda header, tensors: send(connection, header, tensors))


def _read(connection: Connection, frames: queue.SimpleQueue[Frame]) -> None:
    """Read frames in a thread, so that a pipe that closes during a round ends the process at once."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            frames.put(receive(connection))
    os._exit(0)


def serve(read: Callable[[], Frame], answer: Callable[[dict[str, Any], State], None]) -> None:
    """Build the learner, then answer requests until one fails for another reason than bad input.

    Args:
        read: waits for the next request; all but `open` name the folder of the site's state, and the site and its log
            if several sites take turns.
        answer: sends `values` and tensors, or a `failure`; before them any number of `progress` lines. `open` has no
            answer: its error is raised again when the learner is needed.
    """
    opening: dict[str, Any] = {}
    learners: Learners | None = None
    while True:
        request, state = unpack(read())
        do = request.pop("do")
        if do == OPEN:
            opening = request
            with contextlib.suppress(Exception):
                learners = Learners.opened(**opening)
            continue
        try:
            learners = learners or Learners.opened(**opening)
            learner = learners.switch_to(request.pop("site", opening["site"]), request.pop("log", opening["log"]))
            learner.folder = Path(request.pop("folder"))
            learner.on_step = StepLines(lambda line: answer({"progress": line}, {}))
            values, tensors = HANDLERS[do](learner, state, **request)
        except Exception as error:
            failure = Failure.of(error)
            answer({"failure": asdict(failure)}, {})
            if failure.retryable:
                return
        else:
            answer({"values": values}, tensors)


class Learners:
    """The learners of a training process: one, or those of several sites that take turns and share a backbone.

    Args:
        sections: of the job.
        policy: the site policy; None in the simulator.
        shared: models that the sites share; None: there is one site.
    """

    def __init__(self, sections: dict[str, Any], policy: SitePolicy | None, shared: SharedModels | None) -> None:
        self._sections, self._policy, self._shared = sections, policy, shared
        self._learners: dict[str, Learner] = {}  # the last used one comes last
        self._held: dict[str, int] = {}  # bytes of each learner alone

    @classmethod
    def opened(
        cls, *, sections: dict[str, Any], site: str | None, log: str | None, policy: dict[str, Any] | None
    ) -> Learners:
        """Limit this process as the site policy says; if a site is given, build its learner."""
        os.umask(0o077)  # only the site's own account may read its files
        if log:
            _print_to(Path(log))
        own = build(SitePolicy, policy, section=FILE, source=FILE) if policy is not None else None
        keep_to(own)
        if own and own.memory_gib:
            limit_memory(own.memory_gib)
        from fedpeft.site.site_model import SharedModels

        made = cls(sections, own, None if site else SharedModels())
        if site and log:
            made.switch_to(site, log)
        return made

    def switch_to(self, site: str, log: str) -> Learner:
        """Return a site's learner, build it if there is none, and print to the site's log from now on."""
        if self._shared:
            _print_to(Path(log))
        self._make_room(site)
        learner = self._learners.pop(site, None)
        if learner is None:
            from fedpeft.site.learner import Learner

            learner = Learner.from_sections(
                self._sections, site=site, folder=Path(log).parent, policy=self._policy, shared=self._shared
            )
        self._learners[site] = learner
        return learner

    def _make_room(self, site: str) -> None:
        """Drop the least recently used learners until the rest use at most `MAX_HELD_BYTES`; never that of `site`.

        Only the last learner has opened images since.
        """
        for name, last in list(self._learners.items())[-1:]:
            self._held[name] = LEARNER_BYTES + last.batches.held_bytes + last.model.own_bytes
        for other in [name for name in self._learners if name != site]:
            if sum(self._held.values()) <= MAX_HELD_BYTES:
                return
            del self._learners[other], self._held[other]


def _print_to(file: Path) -> None:
    """Redirect stdout and stderr, including a crash's traceback, to a file of the site."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(descriptor, stream.fileno())
    os.close(descriptor)


def _introduce(learner: Learner, _: State, *, initial: bool, finished: int, own: int) -> Answer:
    """Return what the server may know of the site, and the first adapter if it is asked for."""
    from fedpeft.core.states import dtype_of  # imports torch

    _print_remarks(learner)
    sent = learner.first_state()
    values = {
        "schema": {key: list(tensor.shape) for key, tensor in sent.items()},
        "classes": learner.announced_classes,
        "samples": learner.announced,
        "dataset": learner.dataset,
        "procedural": is_procedural(learner.dataset),
        "metric": learner.data.metric,
        "backbone": learner.backbone_name,
        "tiny": is_tiny(learner.backbone_name),
        "width": learner.backbone.hidden_size,
        "family": learner.backbone.family,
        "slots": learner.trainable.slots(),
        "dtype": dtype_of(sent),
        "budget": learner.layer_budget(),
        "finished": learner.finished(own),
        "baseline": learner.constant,
        "start_digest": "" if finished else learner.start_digest(),
        "unanswerable": learner.unanswerable,
        "tested": len(learner.data.test),
        "facts": training_facts(learner),
    }
    return values, sent if initial else {}


def training_facts(learner: Learner) -> dict[str, Any]:
    """Return the facts that determine the site's training; for the seeds of a secure sum also the images."""
    return {**learner.facts, **({"images": learner.record.images} if learner.method.secure_sum else {})}


def _print_remarks(learner: Learner) -> None:
    """Write remarks on a site's data to its own log, which FLARE does not pass on: they may name images."""
    constant, questions = learner.constant, len(learner.data.test)
    reached = f"A constant answer reaches {constant:.1%} on {questions:,} test samples." if constant else ""
    cut = cut_texts(learner.data, learner.backbone, answers=not ANSWERING.get(learner.training.answering).head)
    unread = unread_questions(learner.data, learner.backbone_name)
    unusual = remarks(learner.data, **learner.counted)
    for text in filter(None, [*unusual, *unread, *cut, reached]):
        CleanedStream(sys.stdout).write(f"{one_line(text)}\n")  # the name of a file may be unprintable
    sys.stdout.flush()


def _score(learner: Learner, state: State, *, round: int) -> Answer:
    return {"scores": learner.score_layers(round, state)}, {}


def _train(
    learner: Learner,
    state: State,
    *,
    round: int,
    layers: list[int] | None,
    scored: bool,
    part: float = 0.0,
    salt: str = "",
) -> Answer:
    learner.salt = salt
    update = learner.train_round(round, state, layers, part=part)
    scores = learner.score_trained(round) if scored else []
    values = {"samples": update.samples, "metrics": update.metrics, "questions": learner.questions, "scores": scores}
    values |= {"validation": len(learner.data.validation), "facts": training_facts(learner)}
    return values, update.state


HANDLERS: dict[str, Callable[..., Answer]] = {INTRODUCE: _introduce, SCORE: _score, TRAIN: _train}


if __name__ == "__main__":
    main()
