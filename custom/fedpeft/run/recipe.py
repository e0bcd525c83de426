# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Jobs in FLARE's own style: a recipe that is executed in a simulator, in POC mode or in a consortium.

    recipe = FedPIARecipe("fedpia_task1", ["training.rounds=2"])
    run = recipe.execute(SimEnv(clients=recipe.sites, workspace_root="runs"))

The job is the folder that `fedpeft jobs` writes for the same settings, plain JSON. Files, filters and components, which
FLARE's recipes can add to a job, are refused: jobs carry no code, and a site decides about its own filters.
"""

from __future__ import annotations

import shutil
import tempfile
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from nvflare.job_config.api import FedJob
from nvflare.recipe.spec import Recipe

from fedpeft.compare.runs import Variant, sections_of
from fedpeft.core.errors import FedpeftError
from fedpeft.core.settings import build
from fedpeft.job.composing import check_used, compose, default_configs, write_job
from fedpeft.methods.settings import MethodSettings
from fedpeft.run.simulate import simulate
from fedpeft.scheduling.settings import ALL


class JsonJob(FedJob):
    """A job of plain JSON files, for what FLARE's environments do with a `FedJob`.

    Args:
        name: of the job, as in `jobs.yml`; its folder has an underscore for a slash.
        sections: of its configuration.
    """

    def __init__(self, name: str, sections: dict[str, Any]) -> None:
        self.recipe = name
        self.sections = sections
        self.sites = list(sections["federation"]["sites"])
        super().__init__(name.replace("/", "_"), min_clients=sections["federation"].get("quorum") or len(self.sites))

    def to(self, obj: Any, target: str, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse to add anything to the job.

        Raises:
            FedpeftError: always.
        """
        raise FedpeftError(
            f"{type(obj).__name__} cannot be added to a job of fedpeft, which carries settings and no code: change the "
            f"settings, or the site's own local/ folder."
        )

    def to_server(self, obj: Any, *args: Any, **kwargs: Any) -> NoReturn:
        """See `to`."""
        self.to(obj, "server")

    def to_clients(self, obj: Any, *args: Any, **kwargs: Any) -> NoReturn:
        """See `to`."""
        self.to(obj, "clients")

    def export_job(self, job_root: str) -> None:
        """Write the job's folder below `job_root`; an earlier one is replaced."""
        folder = Path(job_root) / self.name
        if folder.exists() and not (folder / "meta.json").is_file():
            raise FedpeftError(f"{folder} is there and is no job: name another folder, or remove it.")
        shutil.rmtree(folder, ignore_errors=True)
        write_job(folder, self.recipe, self.sections)

    def simulator_run(
        self,
        workspace: str,
        n_clients: int | None = None,
        clients: list[str] | None = None,
        threads: int | None = None,
        gpu: str | None = None,
        log_config: str | None = None,
    ) -> int:
        """Run the job as `fedpeft simulate` does; FLARE's `SimEnv` calls this.

        Raises:
            FedpeftError: the environment has other sites than the job, or what fedpeft's simulator does not take.
        """
        named = clients or self.sites[: n_clients or 0]
        if set(named) != set(self.sites) or (n_clients or len(named)) != len(self.sites):
            raise FedpeftError(
                f"SimEnv has {n_clients or len(named)} clients, this job has the sites {', '.join(self.sites)}: write "
                f"SimEnv(clients=recipe.sites)."
            )
        if gpu or log_config:
            raise FedpeftError("gpu_config and log_config of SimEnv have no part here: leave them out.")
        with tempfile.TemporaryDirectory() as folder:
            self.export_job(folder)
            simulate(Path(folder) / self.name, workspace=Path(workspace), threads=threads or len(self.sites))
        return 0


class _JobRecipe(Recipe):
    """A job of `app_configs/jobs.yml`: unchanged if it has the recipe's method, else changed to that method.

    Args:
        job: a task of `fedpeft tasks`, or any job of `app_configs/jobs.yml`; empty: the recipe's default one.
        settings: as `section.name=value`.
        configs: the `app_configs` folder; None: the one here, or the package's.
    """

    default_job: str
    method: str

    def __init__(self, job: str = "", settings: Sequence[str] = (), *, configs: Path | None = None) -> None:
        job, folder = job or self.default_job, configs or default_configs()
        if self.fits(compose(folder, job)):
            sections = compose(folder, job, settings)
        else:
            chosen = Variant(name=self.method, method=self.method, settings=tuple(settings))
            sections = sections_of(folder, job, chosen, [])
        check_used(settings, sections, job=job)
        if not self.fits(sections):
            raise FedpeftError(
                f"{', '.join(settings):.200} replaces what {type(self).__name__} is for: leave that out, or write the "
                f"job with `fedpeft jobs`."
            )
        super().__init__(JsonJob(job, sections))

    @staticmethod
    @abstractmethod
    def fits(sections: Mapping[str, Any]) -> bool:
        """Return whether a job has the recipe's method."""

    @property
    def sites(self) -> list[str]:
        """The names of the job's sites, for `SimEnv(clients=...)`."""
        return list(self._job.sites)


class FedPIARecipe(_JobRecipe):
    """Adapters are permuted into alignment before they are integrated (Saha et al. 2024)."""

    default_job, method = "fedpia_task1", "fedpia_agreement"

    @staticmethod
    def fits(sections: Mapping[str, Any]) -> bool:
        """Return whether the adapters of a job are aligned."""
        return build(MethodSettings, sections["method"], section="method").aligns


class F3OCUSRecipe(_JobRecipe):
    """Every site trains the layers that the server schedules for it (Saha et al. 2025)."""

    default_job, method = "f3ocus_task1", "pfeiffer+f3ocus"

    @staticmethod
    def fits(sections: Mapping[str, Any]) -> bool:
        """Return whether layers are scheduled in a job."""
        return bool(sections["schedule"].get("solver", ALL) != ALL)
