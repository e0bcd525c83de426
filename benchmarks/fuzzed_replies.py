# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Twenty thousand malformed hellos, scores and adapters through the real controller, drawn with a seed, by kind.

In each job of one round more than half of the sites reply as they should and all others send something malformed. Every
sound adapter is the same one, so that the global adapter must be that one, whoever is accepted. What FLARE's
serialization can carry goes through it; the rest is handed over as it is, as if a site had another way to send it.
"""

from __future__ import annotations

import copy
import random
import resource
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
from measured import ROOT
from nvflare.apis.dxo import DataKind
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import ReservedHeaderKey, Shareable
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.fuel.utils import fobs

from fedpeft.flare import controller
from fedpeft.flare.messages import FIELDS, register_tensors, to_model
from fedpeft.protocol.types import HELLO, METRICS, SCORE, TRAIN, ScoreReply, TrainReply
from fedpeft.server import job_run

sys.path.insert(0, str(ROOT / "tests" / "support"))

from harness import LAYERS, SCHEDULE, START, Harness, starting

FAULTY = tuple(f"malformed-{number}" for number in range(25))
HONEST = tuple(f"honest-{number}" for number in range(len(FAULTY) + 1))
TASKS = (HELLO, SCORE, TRAIN)
COUNT, SEED = 20_000, 0
SOUND = {key: torch.full(shape, 0.25) for key, shape in LAYERS.items()}
KEY = min(SOUND)
FIGURES = (float("nan"), float("inf"), -float("inf"), -1.0, 1e308, -1e308, 2.0**60, 1e-320, 0.5, -0.0)
NUMBERS = (-1, 2**53 + 1, -(2**63), 2**64, 10**12, 10**5000, -(10**400))
TEXTS = (
    "",
    "\x1b[2J",
    "a\nb",
    "\x00",
    "\udc80",
    "‮gpj.exe",
    "é" * 400,
    "x" * 10**6,
    "../../etc/passwd",
    "{$PATH}",
    "True",
)
Change = Callable[[Shareable, random.Random, str], None]
Spoil = Callable[[Shareable], None]
Row = tuple[str, str, str]


class _Silent(torch.Tensor):
    """A tensor that answers every question about itself with nothing."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return None


def _nested(depth: int, kind: type) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if kind is list else {"a": value}
    return value


def _leaf(rng: random.Random) -> Any:
    plain = (None, True, False, (), b"\x80", set(), object(), int, 1j, range(3), ...)
    return rng.choice((rng.choice(FIGURES), rng.choice(NUMBERS), rng.choice(TEXTS), rng.choice(plain), torch.ones(2)))


def _junk(rng: random.Random, depth: int = 3) -> Any:
    kind = rng.randrange(4) if depth else 0
    if kind == 1:
        return [_junk(rng, depth - 1) for _ in range(rng.randrange(4))]
    if kind == 2:
        return {_name(rng): _junk(rng, depth - 1) for _ in range(rng.randrange(4))}
    return _nested(rng.choice((9, 200, 5000)), rng.choice((list, dict))) if kind == 3 and depth == 3 else _leaf(rng)


def _name(rng: random.Random) -> Any:
    return rng.choice((*TEXTS, None, 7, True, (1, "a"), 1.5, b"k", "layer.99.output.down.weight", "head.weight"))


def _fields(sent: Shareable) -> dict:
    return sent["DXO"]["meta"][FIELDS]


def _tensors(sent: Shareable) -> dict:
    return sent["DXO"]["data"]


def _one_of(kinds: tuple[type, ...], values: tuple) -> Change:
    """One field of these types gets one of the values."""

    def change(sent: Shareable, rng: random.Random, task: str) -> None:
        fields = _fields(sent)
        name = rng.choice([name for name, value in fields.items() if type(value) in kinds])
        fields[name] = rng.choice(values)

    return change


def _wrong_type(sent: Shareable, rng: random.Random, task: str) -> None:
    _fields(sent)[rng.choice(list(_fields(sent)))] = _junk(rng)


def _missing(sent: Shareable, rng: random.Random, task: str) -> None:
    for name in rng.sample(list(_fields(sent)), rng.randint(1, 3)):
        del _fields(sent)[name]


def _extra(sent: Shareable, rng: random.Random, task: str) -> None:
    _fields(sent)[_name(rng)] = _junk(rng)


def _inside(sent: Shareable, rng: random.Random, task: str) -> None:
    """An entry of a list or of an object in the fields."""
    names = [name for name, value in _fields(sent).items() if type(value) in (list, dict)]
    inner = _fields(sent)[rng.choice(names)]
    if isinstance(inner, dict):
        inner[rng.choice((*inner, _name(rng)))] = _junk(rng)
    else:
        inner.insert(rng.randrange(len(inner) + 1), _junk(rng))


def _deep(sent: Shareable, rng: random.Random, task: str) -> None:
    depth, kind = rng.choice((30, 300, 3000, 30_000)), rng.choice((list, dict))
    _fields(sent)[rng.choice(list(_fields(sent)))] = _nested(depth, kind)


def _many(sent: Shareable, rng: random.Random, task: str) -> None:
    names = [name for name, value in _fields(sent).items() if type(value) in (list, dict)]
    name, count = rng.choice(names), 20_001
    of_list = type(_fields(sent)[name]) is list
    _fields(sent)[name] = [0.5] * count if of_list else {f"layer.{n}.output.down.weight": [2, 2] for n in range(count)}


def _layout(rng: random.Random) -> Any:
    made = {
        "coo": lambda: torch.ones(2, 2).to_sparse(),
        "csr": lambda: torch.ones(2, 2).to_sparse_csr(),
        "csc": lambda: torch.ones(2, 2).to_sparse_csc(),
        "bsr": lambda: torch.ones(2, 2).to_sparse_bsr((1, 1)),
        "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        "jagged": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        "quantized": lambda: torch.quantize_per_tensor(torch.ones(2, 2), 0.1, 0, torch.qint8),
        "by channel": lambda: torch.quantize_per_channel(
            torch.ones(2, 2), torch.ones(2), torch.zeros(2), 0, torch.qint8
        ),
        "meta": lambda: torch.ones(2, 2, device="meta"),
        "mkldnn": lambda: torch.ones(2, 2).to_mkldnn(),
        "terabytes on meta": lambda: torch.empty(2**20, 2**20, device="meta"),
    }
    return made[rng.choice(list(made))]()


def _dtype(rng: random.Random) -> torch.Tensor:
    kinds = (torch.float64, torch.bfloat16, torch.float16, torch.int8, torch.uint16, torch.int64, torch.bool)
    return torch.ones(2, 2).to(
        rng.choice((*kinds, torch.complex64, torch.complex32, torch.float8_e4m3fn, torch.uint64))
    )


def _shape(rng: random.Random) -> torch.Tensor:
    shape = rng.choice(((), (4,), (0, 2), (2, 0), (1, 2, 2), (2, 2, 1), (3, 2), (2,) * 16, (2**30, 2**30)))
    many_axes, too_large = len(shape) > 3, max(shape, default=0) > 3
    # where FLARE cannot send a tensor it prints it, which takes minutes for many axes
    return torch.ones(()).expand(shape) if too_large or (rng.random() < 0.5 and not many_axes) else torch.ones(shape)


def _view(rng: random.Random) -> torch.Tensor:
    """The same numbers as every sound tensor, or more of them, laid out in another way."""
    same = torch.full((4, 4), 0.25)
    made = (
        lambda: same[::2, ::2],
        lambda: same[:2, :2].t(),
        lambda: torch.full((), 0.25).expand(2, 2),
        lambda: torch.full((3,), 0.25).as_strided((2, 2), (1, 1)),
        lambda: torch.full((2**22,), 0.25)[-4:].view(2, 2),  # the end of 16 MB
        lambda: torch.full((2, 2), -0.25j, dtype=torch.complex64).conj().imag,  # a view that is negated when it is read
        lambda: torch.full((), 0.25).expand(2**15, 2**15),
        lambda: torch.full((), 0.25).expand(2**31, 2**31),
    )
    return rng.choice(made)()


def _subclass(rng: random.Random) -> torch.Tensor:
    made = (
        lambda: torch.nn.Parameter(torch.full((2, 2), 0.25)),
        lambda: torch.full((2, 2), 0.25, requires_grad=True),
        lambda: torch.full((2, 2), 0.125, requires_grad=True) * 2,
        lambda: torch.full((2, 2), 0.25).as_subclass(_Silent),
        lambda: torch.nn.Buffer(torch.full((2, 2), 0.25)),
    )
    return rng.choice(made)()


def _value(rng: random.Random) -> torch.Tensor:
    tensor = torch.full((2, 2), 0.25)
    tensor[rng.randrange(2), rng.randrange(2)] = rng.choice((float("nan"), float("inf"), -float("inf"), 1e7, -3e38))
    return tensor


def _not_a_tensor(rng: random.Random) -> Any:
    return rng.choice((SOUND[KEY].numpy(), SOUND[KEY].tolist(), "0.25", None, 0.25, _junk(rng), {"a": SOUND[KEY]}))


def _tensor(make: Callable[[random.Random], Any]) -> Change:
    """One tensor, or all of them, in place of the sound ones; also where none is wanted."""

    def change(sent: Shareable, rng: random.Random, task: str) -> None:
        if not _tensors(sent):
            _tensors(sent)[KEY] = make(rng)
        elif rng.random() < 0.2:
            shared = make(rng)
            _tensors(sent).update(dict.fromkeys(_tensors(sent), shared))
        else:
            _tensors(sent)[rng.choice(list(_tensors(sent)))] = make(rng)

    return change


def _tensor_name(sent: Shareable, rng: random.Random, task: str) -> None:
    if rng.random() < 0.1:
        _tensors(sent).update({f"layer.{n}.output.down.weight": torch.ones(1) for n in range(2000)})
    elif rng.random() < 0.3 and _tensors(sent):
        del _tensors(sent)[rng.choice(list(_tensors(sent)))]
    else:
        _tensors(sent)[_name(rng)] = torch.ones(2, 2)


def _part(sent: Shareable, rng: random.Random, task: str) -> None:
    """FLARE's own parts of a reply."""
    name = rng.choice(("kind", "data", "meta", FIELDS))
    if name == FIELDS:
        sent["DXO"]["meta"][FIELDS] = _junk(rng)
    else:
        kinds = [kind for kind in vars(DataKind).values() if isinstance(kind, str) and kind.isupper()]
        sent["DXO"][name] = rng.choice(kinds) if name == "kind" and rng.random() < 0.5 else _junk(rng)


def _header(sent: Shareable, rng: random.Random, task: str) -> None:
    codes = [code for name, code in vars(ReturnCode).items() if name.isupper()]
    if rng.random() < 0.5:
        sent.set_header(ReservedHeaderKey.RC, rng.choice(codes))
        return
    name = rng.choice((AppConstants.CURRENT_ROUND, AppConstants.VALIDATE_TYPE, "job_id", "site_name", _name(rng)))
    sent[ReservedHeaderKey.HEADERS] = _junk(rng) if rng.random() < 0.2 else {name: _junk(rng)}


def _whole(sent: Shareable, rng: random.Random, task: str) -> None:
    if rng.random() < 0.5:
        sent.clear()
    else:
        sent["DXO"] = _junk(rng)


def _several(sent: Shareable, rng: random.Random, task: str) -> None:
    changes = [change for change in KINDS.values() if change not in (_several, _whole, _part, _header)]
    for change in rng.sample(changes, rng.randint(2, 4)):
        try:
            change(sent, rng, task)
        except (KeyError, IndexError, TypeError, AttributeError):  # an earlier one has taken away what it would change
            continue


KINDS: dict[str, Change] = {
    "a field of another type": _wrong_type,
    "fields that are missing": _missing,
    "fields that no message has": _extra,
    "figures out of range": _one_of((int, float), FIGURES),
    "whole numbers of up to 5,001 digits": _one_of((int, float), NUMBERS),
    "control characters, surrogates and long texts": _one_of((str,), TEXTS),
    "entries of lists and objects": _inside,
    "nested up to 30,000 deep": _deep,
    "more entries than a message may have": _many,
    "tensors that are sparse, nested, quantized or without data": _tensor(_layout),
    "tensors of another dtype": _tensor(_dtype),
    "tensors of another shape, up to 2**60 numbers": _tensor(_shape),
    "views: strided, overlapping, of a shared or larger storage": _tensor(_view),
    "subclasses of tensors, and tensors with a gradient": _tensor(_subclass),
    "NaN, infinity and numbers above a weight's": _tensor(_value),
    "what is no tensor": _tensor(_not_a_tensor),
    "names of tensors": _tensor_name,
    "FLARE's own parts of a reply": _part,
    "FLARE's headers and return codes": _header,
    "nothing, or anything else, in place of the reply": _whole,
    "two to four of these at once": _several,
}
SLOW_TO_SEND = (_deep, _many)  # seconds at the site, for each


class Record:
    """A record that writes nothing, and keeps why each site's reply to one task was refused.

    Args:
        task: whose replies are malformed.
    """

    folder = Path()

    def __init__(self, task: str) -> None:
        self.task, self.history, self.ends = task, {}, {}

    def record_handshake(self, method: Any, training: Any, introductions: dict, problems: dict, schedule: Any) -> None:
        if self.task == HELLO:
            self.ends = {**dict.fromkeys(introductions, ""), **problems}

    def add_round(self, number: int, accepted: dict, rejected: dict, *args: Any, **kwargs: Any) -> None:
        if self.task != HELLO:
            self.ends = {**dict.fromkeys(accepted, ""), **rejected}

    def __getattr__(self, name: str) -> Callable:
        return lambda *args, **kwargs: []


def job(task: str, changes: dict[str, Spoil], *, carried: bool = True) -> tuple[dict[str, str], str]:
    """One job of one round in which some sites' replies to a task are malformed.

    Args:
        task: whose replies are malformed.
        changes: by site.
        carried: whether replies go through FLARE's serialization where it can carry them.

    Returns:
        The reason of the refusal by site, empty where the reply was of use; and what was wrong with the job's end.
    """

    record, starts = Record(task), []

    def answer(name: str, sound: Callable) -> Callable:
        def reply(site: str, *order: Any) -> Any:
            message = sound(site, *order)
            if name == HELLO and not harness.hello.initial:
                message = replace(message, state={})
            if name == SCORE:
                starts.append(_same(order[0].state, START))
            if name != task or site not in changes:
                return message
            shareable = copy.deepcopy(FLModelUtils.to_shareable(to_model(message)))
            changes[site](shareable)
            return _carried(shareable) if carried else shareable

        return reply

    harness = Harness(
        answer(HELLO, lambda site: replace(starting(site), budget=3)),
        answer(TRAIN, _trained),
        answer(SCORE, lambda site, order: ScoreReply(round=1, scores=[0.5, 0.3, 0.2], seconds=0.1, problem="")),
        rounds=1,
        quorum=len(HONEST),
        schedule={} if task == TRAIN else {**SCHEDULE, "budget": 3},
        sites=[*changes, *HONEST],
    )
    with ExitStack() as patches:
        lineages = Path(patches.enter_context(TemporaryDirectory()))
        for name, folder in (("run_folder", None), ("lineages_folder", lineages)):
            patches.enter_context(patch.object(controller, name, lambda fl_ctx, folder=folder: folder))
        for name, value in (_WRITES_NOTHING | {"RunRecorder": lambda *args, **kwargs: record}).items():
            patches.enter_context(patch.object(job_run, name, value))
        harness.run()
    if harness.panics:
        return record.ends, f"the job ended: {harness.panics[0]}"
    if not all(starts):
        return record.ends, "sites start from another adapter"
    return record.ends, "" if _same(harness.saved[-1], SOUND) else "the global adapter differs"


def _same(state: dict, expected: dict) -> bool:
    return state.keys() == expected.keys() and all(
        type(tensor) is torch.Tensor and not tensor.requires_grad and torch.allclose(tensor, expected[key])
        for key, tensor in state.items()
    )


_WRITES_NOTHING = {
    "prune": lambda *args: None,
    "export_adapter": lambda *args, **kwargs: None,
}


def _trained(site: str, order: Any) -> TrainReply:
    values = {"metrics": dict.fromkeys(METRICS, 0.5), "scores": [], "seconds": 1.0, "problem": "", "state": SOUND}
    return TrainReply(round=1, samples=5, **values)


def _carried(reply: Shareable) -> Shareable:
    """A reply as it arrives, where FLARE can carry it."""
    try:
        arrived = fobs.loads(fobs.dumps(reply))
    except Exception:  # of any kind: what a site cannot send so is handed over
        return reply
    return arrived if isinstance(arrived, Shareable) else reply


def rows(count: int = COUNT, seed: int = SEED) -> Iterator[Row]:
    """A row for each kind of change: how many were drawn, how they ended, and what was lost by them."""
    warnings.filterwarnings("ignore", category=UserWarning)  # torch's, of kinds of tensors that it will give up
    register_tensors()
    jobs = [(task, kind) for kind in KINDS for task in TASKS]
    each, rest = divmod(count, len(jobs))
    for kind in KINDS:
        ends: Counter[str] = Counter()
        wrong: list[str] = []
        before = _peak_mb()
        for task in TASKS:
            number = each + (jobs.index((task, kind)) < rest)
            for start in range(0, number, len(FAULTY)):
                drawn = {site: _drawn(kind, task, seed, start + n) for n, site in enumerate(FAULTY[: number - start])}
                answers, end = job(task, drawn, carried=KINDS[kind] not in SLOW_TO_SEND)
                wrong += [f"{task}: {end}"] * bool(end)
                ends.update(_end(site, answers.get(site)) for site in drawn)
        more = _peak_mb() - before
        said = ", ".join(f"{number:,} {end}" for end, number in ends.most_common())
        nothing = f"no other site's reply, no job; {more:.0f} MB of memory"
        yield f"{ends.total():,} of: {kind}", said, "; ".join(wrong) or nothing


def _drawn(kind: str, task: str, seed: int, number: int) -> Spoil:
    rng = random.Random(f"{seed} {kind} {task} {number}")
    return lambda sent: KINDS[kind](sent, rng, task)


def _end(site: str, reason: str | None) -> str:
    if reason is None:
        return "without an end"
    if not reason:
        return "of use all the same"
    if site not in reason:
        return "refused without the site's name"
    if "cannot be read (" in reason:
        return f"refused by a {reason.partition('(')[2].partition(')')[0]}"
    return (
        "unread by FLARE"
        if "no usable reply" in reason or "did not answer" in reason or "sent no scores" in reason
        else "refused"
    )


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
