# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The loss on the plane through two sites' adapters and the global one, before and after alignment: picture and table.

    point(x, y) = global + x u + y v        u, v: orthonormal, by Gram-Schmidt of site_a - global and site_b - global

The loss of a point is the mean over both sites, each with its own head and on its own probe samples. Alignment brings
the neurons of both adapters into the order of the global one, which changes no adapter's function.

Source: Saha et al., FedPIA, Figure 2(c); Garipov et al. 2018 draw losses on such planes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import rich.table
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich import box
from rich.progress import track

from fedpeft.alignment.client_pia import align_upload
from fedpeft.core.console import Console, cell
from fedpeft.core.errors import FedpeftError
from fedpeft.core.files import replacing
from fedpeft.core.keys import group_by_place, without_head
from fedpeft.core.seeds import derive
from fedpeft.core.states import State, first_misfit
from fedpeft.core.text import capitalized, counted
from fedpeft.core.workspace import GLOBAL_ADAPTER, MANIFEST
from fedpeft.inference.examples import own_data
from fedpeft.inference.kept_model import KeptModel, find, sites_in
from fedpeft.inference.merge_check import POINTS, barrier
from fedpeft.inference.predictor import Predictor, read_tensors
from fedpeft.job.settings import CommonSettings
from fedpeft.report import SURFACE
from fedpeft.report.history_reader import read_manifest
from fedpeft.report.palette import LIGHT, drawn, shorten, svg
from fedpeft.report.status import SIMULATED
from fedpeft.report.wording import caution
from fedpeft.site import computing
from fedpeft.site.client_round import moved_places
from fedpeft.site.loop import mean_loss
from fedpeft.site.site_model import exchanged

GLOBAL_LABEL = "global adapter"  # in pictures; a site's name has no blank
AS_THEY_COME, ALIGNED = "as they come", "aligned"
GRID, MIN_GRID, MAX_GRID = 11, 3, 101
MARGIN = 0.3  # around the three points, of the longer side
FLAT = 1e-4  # a third point nearer to the line, in its length, makes no plane
Loss = Callable[[State], float]
LEVELS = 14
WIDTH, HEIGHT, LETTERS = 7.6, 3.3, 18  # inches; of a site's name
POINT, STAR = ("o", 5), ("*", 9)  # of a site and of the global adapter: marker and size


@dataclass(frozen=True, kw_only=True)
class Plane:
    """A plane of adapters."""

    origin: State  # the global adapter, and the order and shapes of all tensors
    axes: torch.Tensor  # u and v, (2, n)
    places: Mapping[str, tuple[float, float]]  # of both sites and the global adapter on it, by name
    random: bool = False  # the three lie on one line, and v is a random direction

    def at(self, x: float, y: float) -> dict[str, torch.Tensor]:
        """Return the adapter at a point."""
        flat = flattened(self.origin) + x * self.axes[0] + y * self.axes[1]
        parts = flat.split([tensor.numel() for tensor in self.origin.values()])
        pairs = zip(self.origin.items(), parts, strict=True)
        return {key: part.reshape(tensor.shape).to(tensor.dtype) for (key, tensor), part in pairs}


@dataclass(frozen=True, kw_only=True)
class Panel:
    """A plane with losses (y, x) on a grid, those of the three adapters, and the barriers between them."""

    plane: Plane
    x: np.ndarray
    y: np.ndarray
    losses: np.ndarray
    at_points: Mapping[str, float]
    barriers: Mapping[tuple[str, str], float]


@dataclass(frozen=True, kw_only=True)
class Surface:
    """A panel before alignment and one after it."""

    panels: Mapping[str, Panel]  # by title
    kept: Mapping[str, KeptModel]  # by site
    moved: int  # places whose neurons alignment moves, of both sites
    places: int  # that both sites have


def surface_of(
    workspace: Path, *, sites: Sequence[str] = (), grid: int = GRID, console: Console | None = None
) -> Surface:
    """Compute the losses around two sites' adapters and the global one of a finished run of `fedpeft simulate`.

    Without sites the run's first two count; the plane has `grid` points along each side.
    """
    if not MIN_GRID <= grid <= MAX_GRID:
        raise FedpeftError(f"--grid is {grid}, it must be from {MIN_GRID} to {MAX_GRID}.")
    chosen = _chosen(workspace, sites)
    kept = {site: find(workspace, site=site) for site in chosen}
    file = workspace / SIMULATED / GLOBAL_ADAPTER
    received = without_head(read_tensors(file)) if file.is_file() else {}
    states = {site: _adapter(one, received) for site, one in kept.items()}
    measure = _loss(kept)
    aligned = {site: align_upload(state, received, site=site) for site, state in states.items()}
    moved = sum(len(moved_places(states[site], aligned[site])) for site in chosen)
    panels: dict[str, Panel] = {}
    for form, adapters in {AS_THEY_COME: states, ALIGNED: aligned}.items():
        if form == ALIGNED and not moved:
            panels[form] = panels[AS_THEY_COME]
            continue
        plane = plane_of(received, adapters)
        panels[form] = _panel(plane, {**adapters, GLOBAL_LABEL: received}, measure, grid, form, console)
    return Surface(panels=panels, kept=kept, moved=moved, places=len(chosen) * len(group_by_place(received)))


def plane_of(origin: State, adapters: Mapping[str, State]) -> Plane:
    """Return the plane through two adapters and the global one, the origin; all have the same tensors."""
    (a, b), start = adapters, flattened(origin)
    first, second = (flattened({key: adapters[site][key] for key in origin}) - start for site in (a, b))
    if not first.norm() or not second.norm():
        raise FedpeftError(
            f"the adapter of site {a if not first.norm() else b} is the global one, and two points make no plane: "
            f"choose another site with --sites."
        )
    u = first / first.norm()
    rest = second - (second @ u) * u
    random = bool(rest.norm() < FLAT * second.norm())
    if random:
        generator = torch.Generator().manual_seed(0)
        rest = torch.randn(len(u), generator=generator, dtype=u.dtype)
        rest = rest - (rest @ u) * u
    v = rest / rest.norm()
    places = {a: (float(first.norm()), 0.0), b: (float(second @ u), float(second @ v)), GLOBAL_LABEL: (0.0, 0.0)}
    return Plane(origin=origin, axes=torch.stack((u, v)), places=places, random=random)


def flattened(state: State) -> torch.Tensor:
    """Return all numbers of an adapter in double precision, (n,)."""
    return torch.cat([tensor.detach().double().flatten() for tensor in state.values()])


def _chosen(workspace: Path, sites: Sequence[str]) -> list[str]:
    file = workspace / SIMULATED / MANIFEST
    if not file.is_file():
        raise FedpeftError(
            f"{workspace} is no workspace of `fedpeft simulate` with a finished run, and --surface needs what the "
            f"sites kept: name one."
        )
    took = sites_in(workspace)
    has = [site for site, about in read_manifest(file)["sites"].items() if "problem" not in about and site in took]
    if len(has) < 2:
        raise FedpeftError(
            f"the run in {workspace} has {counted(len(has), 'site')} that took part, and --surface needs two: name "
            f"another run."
        )
    if not sites:
        return has[:2]
    if len(set(sites)) != 2 or not set(sites) <= set(has):
        raise FedpeftError(f"--sites is {','.join(sites)!r:.80}: name two of {', '.join(has)} with a comma between.")
    return list(sites)


def _adapter(kept: KeptModel, received: State) -> State:
    """Return the adapter that a site keeps, in the order of the global one's tensors."""
    record, state = kept.record, kept.state.adapter
    method, _, _ = CommonSettings.from_sections(record.sections)
    if not received or method.registered.neuron_layout() is None:
        raise FedpeftError(
            f"method {method.name!r} exchanges no adapter with neurons that alignment could move: name a run with "
            f"adapters, such as houlsby or lora."
        )
    if method.rule.stacks:
        raise FedpeftError(
            "method.aggregation is 'stack', whose global adapter is added to frozen weights: name a run with "
            "another aggregation."
        )
    misfit = first_misfit(state, {key: tuple(tensor.shape) for key, tensor in received.items()})
    if misfit:
        where = misfit.key or (misfit.missing or misfit.unknown)[0]
        raise FedpeftError(
            f"the adapter of site {record.site} has another width or other layers than the global one ({where}), and "
            f"a plane needs the same of all: choose other sites with --sites."
        )
    return {key: state[key] for key in received}


def _loss(kept: Mapping[str, KeptModel]) -> Loss:
    """Return the mean loss of an adapter over the sites, each with its own head on its own probe samples."""
    models = {site: Predictor(_exchanged(one)) for site, one in kept.items()}
    batches = {site: _probe(kept[site], predictor) for site, predictor in models.items()}

    def loss(state: State) -> float:
        values = []
        for site, predictor in models.items():
            model = predictor.model
            model.trainable.load(state)
            with computing.shortcuts(model.backbone, model.training):
                values.append(mean_loss(model.answering.eval(), batches[site]))
        return sum(values) / len(values)

    return loss


def _exchanged(kept: KeptModel) -> KeptModel:
    """Return the model as the site exchanges it: without second branch or personal values."""
    state = kept.state
    head, private = exchanged(state)
    return replace(kept, state=replace(state, trained={}, beside={}, head=head, private=private))


def _probe(kept: KeptModel, predictor: Predictor) -> list[Any]:
    """Return the samples on which a run with `training.measure: start` measures losses in the simulator."""
    method, training, _ = CommonSettings.from_sections(kept.record.sections)
    train = own_data(kept).train
    generator = torch.Generator().manual_seed(derive(training.seed, "measure", kept.record.site))
    order = torch.randperm(len(train), generator=generator)[: method.probe_samples].tolist()
    return [batch.to(predictor.model.device) for batch in predictor.batches([train[index] for index in order])]


def _panel(
    plane: Plane, adapters: Mapping[str, State], loss: Loss, grid: int, what: str, console: Console | None
) -> Panel:
    xs, ys = zip(*plane.places.values(), strict=True)
    pad = MARGIN * max(np.ptp(xs), np.ptp(ys))
    x, y = (np.linspace(min(of) - pad, max(of) + pad, grid) for of in (xs, ys))
    if plane.random:
        y = np.linspace(-np.ptp(x) / 2, np.ptp(x) / 2, grid)
    names = list(plane.places)
    ways = [(a, b) for number, a in enumerate(names) for b in names[number + 1 :]]
    points = [(float(i), float(j)) for j in y for i in x]
    of_ways = [_between(plane.places[a], plane.places[b], t) for a, b in ways for t in POINTS[1:-1]]
    shown = bool(console and console.is_terminal)
    steps = track([*points, *of_ways], description=what, console=console, transient=True, disable=not shown)
    losses = [loss(plane.at(*point)) for point in steps]
    if not np.isfinite(losses).any():
        raise FedpeftError("no point of the plane has a finite loss: the run's training diverged, name another run.")
    at_points = {name: loss(adapters[name]) for name in names}
    inner = np.array(losses[len(points) :]).reshape(len(ways), -1)
    return Panel(
        plane=plane,
        x=x,
        y=y,
        losses=np.array(losses[: len(points)]).reshape(grid, grid),
        at_points=at_points,
        barriers={
            (a, b): barrier([at_points[a], *between, at_points[b]])
            for (a, b), between in zip(ways, inner.tolist(), strict=True)
        },
    )


def _between(a: tuple[float, float], b: tuple[float, float], share: float) -> tuple[float, float]:
    return (1 - share) * a[0] + share * b[0], (1 - share) * a[1] + share * b[1]


def title(surface: Surface) -> str:
    """Return the title of picture and table."""
    return f"Loss between {' and '.join(surface.kept)}"


def remarks(surface: Surface) -> tuple[str, ...]:
    """Return the lines below table and picture."""
    rounds = ", ".join(f"{site} after round {one.state.round}" for site, one in surface.kept.items())
    note = _caution(surface)
    equal = "" if surface.moved else ": the sites are in the global order, and both panels are equal"
    flat = [form for form, panel in surface.panels.items() if panel.plane.random]
    return (
        f"adapters {rounds}; mean loss of both sites on their probe samples, each with its own head",
        f"moved    {surface.moved} of {surface.places} places{equal}",
        *(f"plane    {form}: all three are on one line, and up is a random direction" for form in flat),
        *((f"note     {note}",) if note else ()),
    )


def _caution(surface: Surface) -> str:
    records = [one.record for one in surface.kept.values()]
    return caution(procedural=any(r.procedural for r in records), tiny=any(r.tiny for r in records))


def report_lines(surface: Surface) -> Iterator[Any]:
    """Yield a table of losses and barriers, and the lines below it, for the terminal."""
    shown = rich.table.Table(title=title(surface), title_justify="left", box=box.SIMPLE_HEAD)
    for number, head in enumerate(("", *surface.panels)):
        shown.add_column(head, justify="right" if number else "left")
    panels = list(surface.panels.values())
    for name in panels[0].at_points:
        shown.add_row(cell(f"loss at {name}"), *(f"{panel.at_points[name]:.3f}" for panel in panels))
    for a, b in panels[0].barriers:
        row = (f"{panel.barriers[a, b]:.3f}" for panel in panels)
        shown.add_row(cell(f"barrier from {a} to {b}"), *row)
    yield shown
    yield from remarks(surface)


def write_picture(surface: Surface, folder: Path) -> Path:
    """Draw both panels into a folder, and return the file."""
    folder.mkdir(parents=True, exist_ok=True)
    content = svg(drawn(lambda: _figure(surface)), "\n".join((title(surface), *remarks(surface))))
    with replacing(folder / SURFACE) as draft:
        draft.write_bytes(content)
    return folder / SURFACE


def _figure(surface: Surface) -> Figure:
    figure = Figure(figsize=(WIDTH, HEIGHT), facecolor=LIGHT.paper, layout="constrained")
    panels = figure.subplots(1, len(surface.panels), squeeze=False)[0]
    known = np.concatenate([one.losses[np.isfinite(one.losses)] for one in surface.panels.values()])
    levels = np.asarray(MaxNLocator(LEVELS).tick_values(known.min(), max(np.quantile(known, 0.9), known.min() + 1e-6)))
    for axes, (name, panel) in zip(panels, surface.panels.items(), strict=True):
        shown = _draw(axes, panel, levels)
        axes.set_title(name, loc="left", fontsize=8.5, fontweight="bold", pad=6)
    figure.colorbar(shown, ax=list(panels), label="loss", shrink=0.9)
    figure.suptitle(title(surface), x=0.01, ha="left", fontsize=9.5, fontweight="bold", color=LIGHT.ink)
    if note := _caution(surface):
        figure.supxlabel(
            f"{capitalized(note)}.", x=0.01, ha="left", fontsize=7.5, fontweight="bold", color=LIGHT.warning
        )
    return figure


def _draw(axes: Axes, panel: Panel, levels: np.ndarray) -> Any:
    losses = np.ma.masked_invalid(panel.losses)
    shown = axes.contourf(panel.x, panel.y, losses, levels=levels, cmap="viridis_r", extend="both")
    axes.contour(panel.x, panel.y, losses, levels=levels, colors=LIGHT.ink, linewidths=0.3)
    look: dict[str, Any] = {"mfc": LIGHT.paper, "mec": LIGHT.ink, "mew": 0.8}
    behind = {"facecolor": LIGHT.paper, "edgecolor": "none", "alpha": 0.8, "pad": 1.2}
    label: dict[str, Any] = {"xytext": (0, 8), "textcoords": "offset points", "ha": "center", "fontsize": 6.5}
    for name, (x, y) in panel.plane.places.items():
        marker, size = STAR if name == GLOBAL_LABEL else POINT
        axes.plot(x, y, marker=marker, markersize=size, **look)
        text = f"{shorten(name, LETTERS)} {panel.at_points[name]:.3f}"
        axes.annotate(text, (x, y), color=LIGHT.ink, bbox=behind, **label)
    axes.set_xlabel("distance from the global adapter", labelpad=2)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    return shown
