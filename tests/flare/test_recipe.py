# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Recipes: the job's folder byte for byte, and nothing that could be added to it."""

from pathlib import Path

import pytest
from nvflare.apis.filter import Filter
from nvflare.recipe import SimEnv

from fedpeft.core.errors import FedpeftError
from fedpeft.run.recipe import F3OCUSRecipe, FedPIARecipe

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "app_configs"


class Harmless(Filter):
    def process(self, data, fl_ctx):
        return data


def files(folder):
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize(
    ("recipe", "job"),
    [
        (FedPIARecipe, "fedpia_task1"),
        (FedPIARecipe, "vqa_rad"),
        (FedPIARecipe, "paper/fedpia_task1"),
        (F3OCUSRecipe, "f3ocus_task1"),
        (F3OCUSRecipe, "paper/f3ocus_task3"),
    ],
)
def test_a_recipe_exports_the_folder_of_the_job(tmp_path, recipe, job):
    recipe(job, configs=CONFIGS).export(str(tmp_path))
    assert files(tmp_path / job.replace("/", "_")) == files(ROOT / "jobs" / job)


def test_a_job_with_another_method_gets_that_of_the_recipe():
    assert F3OCUSRecipe("fedpia_task3", configs=CONFIGS)._job.sections["schedule"]["solver"]
    pia = FedPIARecipe("f3ocus_task1", configs=CONFIGS)._job.sections["method"]["pia"]
    assert pia == FedPIARecipe("fedpia_task1", configs=CONFIGS)._job.sections["method"]["pia"]
    assert FedPIARecipe("f3ocus_task1", configs=CONFIGS)._job.sections["schedule"] == {}


def test_settings_of_the_caller_do_not_say_which_method_a_job_has():
    plain, chosen = (
        F3OCUSRecipe("fedpia_task1", settings, configs=CONFIGS)._job.sections
        for settings in ([], ["schedule.solver=exact"])
    )
    assert (plain["method"]["name"], plain["schedule"]["solver"]) == ("pfeiffer", "nsga2")
    assert chosen == {**plain, "schedule": {**plain["schedule"], "solver": "exact"}}


@pytest.mark.parametrize(
    ("recipe", "setting"), [(F3OCUSRecipe, "schedule.solver=all"), (FedPIARecipe, "method.aggregation=fedavg")]
)
@pytest.mark.parametrize("job", ["fedpia_task1", "f3ocus_task1"])
def test_settings_that_leave_nothing_of_the_method_are_refused(recipe, setting, job):
    with pytest.raises(FedpeftError, match=f"{setting} replaces what {recipe.__name__} is for: leave that out"):
        recipe(job, [setting], configs=CONFIGS)


def test_a_recipe_takes_settings_in_the_form_of_the_option_set(tmp_path):
    recipe = FedPIARecipe(settings=["training.rounds=2"], configs=CONFIGS)
    assert recipe._job.sections["training"]["rounds"] == 2
    with pytest.raises(FedpeftError, match="is not of the form"):
        FedPIARecipe(settings=["rounds"], configs=CONFIGS)


def test_settings_are_those_of_the_method_that_a_recipe_ends_with():
    width = ["method.settings.pfeiffer.reduction_factor=8"]
    recipe = F3OCUSRecipe("fedpia_task1", width, configs=CONFIGS)
    assert recipe._job.sections["method"]["settings"]["pfeiffer"] == {"reduction_factor": 8}
    with pytest.raises(
        FedpeftError, match=r"method\.settings\.lora changes nothing in fedpia_task1, whose method is pf"
    ):
        F3OCUSRecipe("fedpia_task1", ["method.settings.lora.r=2"], configs=CONFIGS)


@pytest.mark.parametrize(
    "add",
    [
        lambda recipe, file: recipe.add_server_file(str(file)),
        lambda recipe, file: recipe.add_client_file(str(file)),
        lambda recipe, file: recipe.add_server_config({"x": 1}),
        lambda recipe, file: recipe.add_client_config({"x": 1}),
        lambda recipe, file: recipe.enable_log_streaming("log.txt"),
        lambda recipe, file: recipe.enable_tensor_streaming(),
    ],
    ids=["server file", "client file", "server setting", "client setting", "logs", "tensors"],
)
def test_nothing_is_added_to_a_job_without_code(tmp_path, add):
    file = tmp_path / "code.py"
    file.write_text("print(1)")
    with pytest.raises(FedpeftError, match="carries settings and no code"):
        add(FedPIARecipe(configs=CONFIGS), file)


def test_filters_belong_to_sites():
    with pytest.raises(FedpeftError, match="or the site's own local/ folder"):
        FedPIARecipe(configs=CONFIGS).add_client_output_filter(Harmless())


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"num_clients": 2}, r"SimEnv has 2 clients, this job has the sites slake, .*SimEnv\(clients=recipe\.sites\)"),
        ({"clients": ["a", "b", "c", "d", "e"]}, "this job has the sites slake"),
        ({"num_clients": 5, "gpu_config": "0"}, "gpu_config"),
    ],
)
def test_an_environment_that_does_not_fit_is_refused(tmp_path, environment, message):
    recipe = FedPIARecipe(configs=CONFIGS)
    with pytest.raises(FedpeftError, match=message):
        recipe.execute(SimEnv(**environment, workspace_root=str(tmp_path)))


def test_a_folder_that_is_no_job_is_not_replaced(tmp_path):
    (tmp_path / "fedpia_task1").mkdir()
    with pytest.raises(FedpeftError, match="is there and is no job"):
        FedPIARecipe(configs=CONFIGS).export(str(tmp_path))
