# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Sections that do not go together are refused by whoever receives them: when a job is composed, by server and site."""

import re
from pathlib import Path

import pytest

from fedpeft.cli import _parser
from fedpeft.compare.command import _plan
from fedpeft.core.errors import FedpeftError
from fedpeft.job.composing import (
    ARGUMENTS,
    CONTROLLER,
    EXECUTOR,
    check_sections,
    compose,
    overlay,
    parse_overrides,
    write_job,
)
from fedpeft.job.folder import job_folder, named_job
from fedpeft.job.settings import ServerJob, SiteJob
from fedpeft.job.writing import find_job

JOB = compose(Path(__file__).parents[2] / "app_configs", "fedpia_task1")
SITES = JOB["federation"]["sites"]
ROBUST = ["method.aggregation=fedavg", "method.robust.average=trimmed_mean"]
SECURE = ["method.aggregation=fedavg", "method.secure_sum=true"]
SCHEDULED = ["method.pia.share=0.5", "schedule.solver=own", "schedule.budget=2"]
MEDIAN = ["method.pia.share=0.5", "method.robust.average=median"]
NO_WEIGHT = ["method.pia.share=0.5", "schedule.weight_importance=0", "schedule.weight_diversity=0"]
FIXED = ["method.pia.share=0.5", "method.pia.accept=false"]
UNEQUAL = [*FIXED, f"method.site_settings.{SITES[0]}.reduction_factor=8"]
SETTINGS_OF_LEFT = "method.site_settings.left.reduction_factor=8"
NO_SITE_FIRST = [f"schedule.joins.{site}=2" for site in SITES]


def _received(component, sections):
    return {name: sections[name] for name in ARGUMENTS[component] if name in sections}


READERS = {
    "composer": check_sections,
    "server": lambda sections: ServerJob.from_sections(_received(CONTROLLER, sections)),
    "site": lambda sections: SiteJob.from_sections(_received(EXECUTOR, sections), site=SITES[0]),
}


@pytest.mark.parametrize(
    ("changes", "readers", "sentence"),
    [
        ([], [], ""),
        (["schedule.clients_per_round=5", "training.first_epochs=3"], [], ""),  # all five sites
        ([*SCHEDULED, "method.matched_layers=12"], ["composer", "server", "site"], "layers that all sites have"),
        (
            ["method.name=full", f"backbone.sites.{SITES[0]}.name=vit"],
            ["composer", "site"],
            "values that belong to one backbone",
        ),
        ([*ROBUST, "method.robust.attackers=2"], [], ""),
        ([*ROBUST, "method.robust.attackers=3"], ["composer", "server"], "set it to 2"),
        (
            [*ROBUST, "method.robust.attackers=2", "schedule.clients_per_round=4"],
            ["composer", "server"],
            "of a round's 4 sites fewer than half may be attackers: set it to 1",
        ),
        ([*SECURE, "schedule.clients_per_round=2"], ["composer", "server"], "the same sites in every round"),
        (NO_SITE_FIRST, ["composer", "server"], "lets every site join after round 1"),
        (
            ["schedule.clients_per_round=2", "training.first_epochs=3"],
            ["composer", "server"],
            "or leave training.first_epochs out",
        ),
        (
            ["schedule.clients_per_round=2", "method.pia.share=0.5", "method.initialization=own"],
            ["composer", "server"],
            "or leave method.initialization out",
        ),
        *(
            (
                ["method.aggregation=fedavg", f"schedule.joins.{SITES[1]}=2", scheme],
                ["composer", "server", "site"],
                "leave one of the two out" if "optimizer" in scheme else "leave schedule.joins out",
            )
            for scheme in (
                "method.server_optimizer=momentum",
                "training.scaffold=true",
                "training.personalization=ditto",
                "training.personalization=fedala",
            )
        ),
        (
            [*SCHEDULED, "schedule.scoring=with_reply", "schedule.every=3"],
            ["composer", "server", "site"],
            "new ones come with every reply: leave every out",
        ),
        (
            [*SCHEDULED, "schedule.scoring=with_reply", "schedule.clients_per_round=2"],
            ["composer", "server"],
            "its scores would grow old: set schedule.scoring to 'fresh'",
        ),
        (["method.settings.houlsby.reduktion=8"], ["composer"], "reduktion"),
        ([*MEDIAN, "method.pia.reference=fedavg"], [], ""),
        ([*MEDIAN, "method.pia.reference=largest"], READERS, "use reference='fedavg', or leave robust.average out"),
        ([*MEDIAN, "method.pia.reference=fixed_point"], READERS, "can follow one site, whatever it sends"),
        *(
            ([*NO_WEIGHT, f"schedule.solver={solver}"], READERS, "are both 0, and no assignment is better than another")
            for solver in ("exact", "drawn")
        ),
        ([*NO_WEIGHT, "schedule.solver=own"], [], ""),
        (UNEQUAL, [], ""),
        ([*UNEQUAL, "schedule.clients_per_round=5", f"schedule.joins.{SITES[0]}=2"], [], ""),
        (
            [*UNEQUAL, "schedule.clients_per_round=2"],
            ["composer", "server"],
            "set schedule.clients_per_round to 0, or leave method.site_settings out",
        ),
        ([*UNEQUAL, "schedule.solver=own"], READERS, "leave it out, or set schedule.solver to 'all'"),
        ([*UNEQUAL, "method.server_optimizer=momentum"], READERS, "server_optimizer is 'momentum' and lets all sites"),
        ([*UNEQUAL, "method.matched_layers=12"], READERS, "matched_layers is 12 and lets all sites start"),
    ],
)
def test_sections_that_do_not_go_together_are_refused_by_all_who_receive_them(changes, readers, sentence):
    sections, sentences = overlay(JOB, parse_overrides(changes)), {}
    for reader, read in READERS.items():
        try:
            read(sections)
        except FedpeftError as error:
            sentences[reader] = str(error)
    assert list(sentences) == list(readers)
    assert all(sentence in text for text in sentences.values()), sentences


@pytest.mark.parametrize("section", ["backbone", "method", "training", "data", "schedule"])
def test_a_section_that_flare_did_not_fill_is_named(section):
    with pytest.raises(FedpeftError, match=f"{section} is None"):
        SiteJob.from_sections({**JOB, section: None}, site=SITES[0])


SHARED = compose(Path(__file__).parents[2] / "app_configs", "vit_ham10000")
ALIKE = "sites that share out one data set need the same"


@pytest.mark.parametrize("change", ["seed=5", "samples=100", "parts=7", "partition=natural", "alpha=3", "test_size=64"])
def test_sites_share_out_a_data_set_by_the_same_settings_or_a_sample_would_be_at_two(change):
    name = change.partition("=")[0]
    own = [f"data.sites.client-2.{change}", *(["data.sites.client-2.parts=1"] if "natural" in change else [])]
    sections = overlay(SHARED, parse_overrides(own))
    for site in ("client-1", "client-2"):
        if site == "client-1":
            with pytest.raises(FedpeftError, match=ALIKE) as caught:
                SiteJob.from_sections(sections, site=site)
            assert caught.value.setting == f"data.sites.client-2.{name}"
        else:  # it sees its own entry alone, and the sites without one refuse the job
            assert SiteJob.from_sections(sections, site=site)
    with pytest.raises(FedpeftError, match=ALIKE):
        check_sections(sections)


def test_a_pool_is_of_parts_that_are_shared_out_alike():
    pooled = ["federation.sites=[center]", "data.sites.center.pool=[client-1, client-2]"]
    sections = overlay(SHARED, parse_overrides(pooled))
    assert len(SiteJob.from_sections(sections, site="center").pooled) == 2
    with pytest.raises(FedpeftError, match=ALIKE):
        SiteJob.from_sections(overlay(sections, parse_overrides(["data.sites.client-2.seed=5"])), site="center")


@pytest.mark.parametrize("root", ["/data/ham10000/", "~/ham10000", "/data//./ham10000"])
def test_one_folder_in_two_spellings_is_one(root, monkeypatch):
    monkeypatch.setenv("HOME", "/data")
    sections = overlay(SHARED, parse_overrides([f"data.root={root}", "data.sites.client-2.seed=5"]))
    with pytest.raises(FedpeftError, match=ALIKE):
        SiteJob.from_sections(sections, site="client-1")


def test_another_data_set_or_another_share_of_training_is_shared_out_as_it_wants():
    own = ["data.sites.client-2.train_share=0.5", "data.sites.client-3.dataset=fed_isic2019", "method.head=private"]
    sections = overlay(SHARED, parse_overrides([*own, "data.sites.client-3.seed=5", "method.aggregation=fedavg"]))
    assert SiteJob.from_sections(sections, site="client-1")


def test_sites_whose_names_end_with_one_number_would_have_one_part():
    sections = overlay(SHARED, parse_overrides(["federation.sites=[north-1, south-1]", "data.parts=2"]))
    apart = parse_overrides(["data.sites.north-1.root=/north", "data.sites.south-1.root=/south"])
    check_sections(overlay(sections, apart))  # two data sets
    with pytest.raises(FedpeftError, match=r"north-1 and south-1 end with one number.*number the sites from 1 to 2"):
        check_sections(sections)


@pytest.mark.parametrize(("every", "refused"), [(1, False), (2, True), (1000, False)])
def test_scores_of_drawn_sites_do_not_grow_old(every, refused):
    own = ["schedule.clients_per_round=2", f"schedule.every={every}", "method.pia.share=0.5", "schedule.solver=own"]
    sections = overlay(JOB, parse_overrides(own))
    if refused:
        with pytest.raises(FedpeftError, match=r"so its scores would grow old: set schedule.every to 1"):
            check_sections(sections)
    else:
        check_sections(sections)


def test_a_folder_that_is_not_what_its_configuration_gives_is_not_composed_anew(tmp_path, monkeypatch):
    write_job(tmp_path / "jobs" / "fedpia_task1", "fedpia_task1", overlay(JOB, parse_overrides(["training.rounds=2"])))
    (tmp_path / "app_configs").symlink_to(Path(__file__).parents[2] / "app_configs")
    monkeypatch.chdir(tmp_path)
    folder = Path("jobs/fedpia_task1")
    assert job_folder(folder, [], tmp_path) == folder
    for compose_anew in (
        lambda: job_folder(folder, ["training.local_epochs=2"], tmp_path / "scratch"),
        lambda: named_job(str(folder), None),
        lambda: _plan(_parser().parse_args(["compare", str(folder), "--methods", "fedavg"])),
    ):
        with pytest.raises(FedpeftError, match=r"is not what .* gives, and this command composes the job of that"):
            compose_anew()


def test_with_configurations_named_a_folder_is_taken_only_if_they_give_it(tmp_path, monkeypatch):
    configs, folder = Path(__file__).parents[2] / "app_configs", Path("jobs/fedpia_task1")
    monkeypatch.chdir(tmp_path)
    write_job(folder, "fedpia_task1", overlay(JOB, parse_overrides(["training.rounds=2"])))
    for take in (lambda: named_job(str(folder), configs), lambda: find_job(folder, configs)):
        with pytest.raises(FedpeftError, match=r"is not what .* gives, and this command composes the job of that"):
            take()
    write_job(folder, "fedpia_task1", JOB)
    assert named_job(str(folder), configs) == (configs, "fedpia_task1")
    assert find_job(folder, configs).sections == JOB


def test_a_site_that_joins_has_nothing_to_align_its_adapter_to():
    chosen = ["method.pia.aligned_at=site", "method.pia.share=0.5", f"schedule.joins.{SITES[0]}=2"]
    with pytest.raises(FedpeftError, match=r"has no global adapter to align its own to: use aligned_at='server'"):
        check_sections(overlay(JOB, parse_overrides(chosen)))


@pytest.mark.parametrize("relative", [False, True])
def test_a_jobs_folder_is_compared_and_changed_from_anywhere(tmp_path, monkeypatch, relative):
    configs, folder = tmp_path / "project" / "app_configs", tmp_path / "project" / "jobs" / "ours"
    configs.mkdir(parents=True)
    (configs / "jobs.yml").write_text("ours: [tasks/phantom, backbones/tiny_vilt, methods/fedavg, deployments/laptop]")
    write_job(folder, "ours", compose(configs, "ours"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    written = Path("../project/jobs/ours") if relative else folder
    (run,) = _plan(_parser().parse_args(["compare", str(written), "--methods", "fedavg", "--seeds", "1"]))
    assert run.method == "fedavg"
    assert job_folder(written, ["training.rounds=2"], tmp_path / "scratch").name == "ours"


@pytest.mark.parametrize(
    ("own", "sentence"),
    [
        (
            ["method.aggregation=none"],
            "with method.aggregation='none' they exchange nothing: set another aggregation, or schedule.solver to",
        ),
        (["method.initialization=own"], "all start from one: set schedule.solver to 'all', or leave method.init"),
    ],
)
def test_scheduled_layers_need_a_global_adapter_from_which_all_start(own, sentence):
    with pytest.raises(FedpeftError, match=re.escape(sentence)):
        check_sections(overlay(JOB, parse_overrides([*SCHEDULED, *own])))


def test_a_partition_of_another_site_that_is_no_text_ends_in_a_sentence():
    with pytest.raises(FedpeftError, match=ALIKE):
        SiteJob.from_sections(
            overlay(SHARED, parse_overrides(["data.sites.client-2.partition=[iid]"])), site="client-1"
        )


VQA_RAD = "data.dataset=vqa_rad"


@pytest.mark.parametrize(
    ("job", "own", "sentence"),
    [
        (SHARED, ["data.sites.client-2.site=client-1"], "client-1 and client-2 (client-1)"),
        (JOB, ["data.site=slake"], "slake and vqa-rad (slake)"),
        (JOB, ["federation.sites=[head, north]", VQA_RAD, "data.sites.north.site=head"], "head and north (head)"),
        (JOB, ["federation.sites=[vqa-rad, head]", VQA_RAD], "vqa-rad and head"),
    ],
)
def test_two_sites_with_the_data_of_one_are_refused(job, own, sentence):
    with pytest.raises(FedpeftError, match=rf"^{re.escape(sentence)} would have the same samples of .*another part"):
        check_sections(overlay(job, parse_overrides(own)))


@pytest.mark.parametrize("own", [["schedule.joins.slak=2"], [*SCHEDULED, "schedule.site_budgets.slak=1"]])
def test_a_misspelt_site_is_refused(own):
    with pytest.raises(FedpeftError, match=r"schedule\..* names 'slak', .*did you mean 'slake'"):
        check_sections(overlay(JOB, parse_overrides(own)))


@pytest.mark.parametrize(
    "own", [["schedule.joins.left=2"], [*SCHEDULED, "schedule.site_budgets.left=1"], [*FIXED, SETTINGS_OF_LEFT]]
)
def test_settings_of_a_site_that_has_left_stay_where_a_job_resumes(own):
    check_sections(overlay(JOB, parse_overrides([*own, "resume_from=latest"])))
    with pytest.raises(FedpeftError, match=r"names 'left', which is not in federation\.sites"):
        check_sections(overlay(JOB, parse_overrides(own)))


def test_a_job_can_set_the_prompt():
    own = ["backbone.name=llava", "backbone.source=/models/llava", "backbone.prompt='Q: <image> <question> A:'"]
    sections = overlay(JOB, parse_overrides([*own, "backbone.text_length=40"]))
    check_sections(sections)
    assert SiteJob.from_sections(sections, site="slake").backbone.prompt == "Q: {image} {question} A:"
    with pytest.raises(FedpeftError, match="it must have <image> and <question> in it"):
        SiteJob.from_sections(overlay(sections, parse_overrides(["backbone.prompt=why"])), site="slake")
