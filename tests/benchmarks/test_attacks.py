# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Rows of benchmarks/attacks.py: what they print is what happened."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from nvflare.apis.shareable import Shareable
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from fedpeft.flare.messages import to_model
from fedpeft.protocol.types import METRICS, TrainOrder, TrainReply

pytestmark = pytest.mark.slow

KEY = "layer.0.output.down.bias"


@pytest.fixture
def attacks(benchmark):
    return benchmark("attacks")


def test_the_command_starts_outside_the_tests(warm_python):
    script = Path(__file__).parents[2] / "benchmarks" / "attacks.py"
    subprocess.run([warm_python, script, "--help"], check=True, capture_output=True)


TABLES = {
    "hostile_replies": ("REPLIES", "SCORES"),
    "poisoning": ("ONE_WAY",),
    "hostile_handshakes": ("LIES",),
    "hostile_servers": ("SETTINGS", "SINGLE", "ORDERS"),
    "hostile_files": ("PARQUET", "XML", "TENSORS", "IMAGES"),
    "hostile_folders": ("FOLDERS", "EXPORTS", "LEDGERS"),
    "lying_processes": ("HELLOS", "STARTS", "UPDATES", "FORMS", "GREETINGS", "ORDERS"),
    "fuzzed_replies": ("KINDS",),
    "attacks": ("LARGE",),
    "faults": ("FAULTS",),
}


def test_the_results_have_a_row_for_everything_that_was_tried(benchmark):
    tried = [name for file, tables in TABLES.items() for table in tables for name in getattr(benchmark(file), table)]
    tried += [attack.name for attack in benchmark("hostile_jobs").attacks()]
    assert len(tried) >= 110
    root = Path(__file__).parents[2]
    results = [(root / "benchmarks" / "results" / f"{name}.md").read_text() for name in ("attacks", "faults")]
    begins = [line[2:].partition(" | ")[0] for line in "".join(results).splitlines() if line.startswith("| ")]
    assert [name for name in tried if not any(name in begin for begin in begins)] == []
    headings = ("what was done", "fault", "---")
    rows = sum(not begin.startswith(headings) for begin in begins)
    page = (root / "docs" / "attacks.md").read_text().replace("\n", " ")
    assert f"Every one of the {rows} rows was printed by a run" in page


def test_a_group_that_ran_again_replaces_its_table_alone(attacks):
    page = "# Rows\n\n## one\n\nold\n\n## two\n\nkept\n"
    written = "# Rows\n\n## one\n\nnew\n\n## two\n\nkept\n"
    assert attacks.replaced(page, "one", "\n## one\n\nnew") == written
    assert attacks.replaced(written, "one", "\n## one\n\nnew") == written
    assert attacks.replaced(page, "three", "\n## three\n\nlast") == page + "\n## three\n\nlast\n"


def only(monkeypatch, table, *names):
    for name in set(table) - set(names):
        monkeypatch.delitem(table, name)


def test_a_lie_in_the_handshake_costs_its_site_its_part(benchmark, monkeypatch):
    handshakes = benchmark("hostile_handshakes")
    only(monkeypatch, handshakes.LIES, "10**12 training samples", "tensors of float64")
    for _, what, lost in list(handshakes.rows())[:2]:
        assert what.startswith("site chest announces ")
        assert lost == "its part in the job; 2 of 2 rounds finished, the adapter is that of the other two"


def test_a_lie_that_passes_would_be_printed_as_such(benchmark, monkeypatch):
    handshakes = benchmark("hostile_handshakes")
    monkeypatch.setattr(handshakes, "LIES", {"nothing": {}})
    assert next(handshakes.rows())[1:] == (
        "nothing was noticed",
        "nothing; 2 of 2 rounds finished, the adapter differs from that of the other two",
    )


def test_a_site_refuses_and_keeps_what_it_has(benchmark, monkeypatch):
    servers = benchmark("hostile_servers")
    only(monkeypatch, servers.SETTINGS, "data.root, a folder of the lead's choice")
    only(monkeypatch, servers.ORDERS, "the state of another job in the handshake", "round 10**12")
    rows = [*servers.settings_rows(), *servers.order_rows()]
    assert len(rows) == 3
    for _, what, lost in rows:
        assert "The server reads: " in what
        assert servers.SECRET not in what
        assert lost == "no value left the site, the state of other jobs is as it was"


def test_two_sums_are_read_only_with_the_seeds(benchmark, monkeypatch):
    sums = benchmark("repeated_sums")
    smaller = ("data.train_size=16", "data.validation_size=2", "data.test_size=4", "training.local_epochs=1")
    monkeypatch.setattr(sums, "SMALL", (*sums.SMALL, *smaller))
    assert sums.Pair().error(1, secret=False) < 1e-6
    pair = sums.Pair()
    once, again = (pair.error(repeats, secret=True) for repeats in (1, 2))
    assert once > 0.3 and once > again  # noqa: PT018


def test_a_job_that_names_single_sites_is_refused_where_only_sums_leave(benchmark):
    servers = benchmark("hostile_servers")
    for (name, what, lost), setting in zip(servers.sum_rows(), servers.SINGLE, strict=True):
        assert name == setting
        assert f"does not allow what the job sets in {setting.partition(',')[0]}:" in what
        assert lost == "no value left the site, the state of other jobs is as it was"


def test_every_kind_of_fuzzed_reply_costs_its_own_site_alone(benchmark):
    fuzzed = benchmark("fuzzed_replies")
    rows = list(fuzzed.rows(count=630, seed=1))
    assert [row[0] for row in rows] == [f"30 of: {kind}" for kind in fuzzed.KINDS]
    for _, what, lost in rows:
        assert {end.partition(" ")[2] for end in what.split(", ")} <= {
            "refused",
            "of use all the same",
            "unread by FLARE",
        }
        assert lost.startswith("no other site's reply, no job; ")


def test_a_job_that_a_fuzzed_reply_ends_would_be_printed_as_such(benchmark, monkeypatch):
    fuzzed = benchmark("fuzzed_replies")
    monkeypatch.setattr(fuzzed, "HONEST", fuzzed.HONEST[:1])
    monkeypatch.setattr(fuzzed.Harness, "save_model", lambda self, model: self.saved.append({"x": torch.ones(1)}))
    assert fuzzed.job("train", {})[1] == "the global adapter differs"


def sent(benchmark):
    order = TrainOrder(
        lineage="a-1", round=2, base=0, version=0, layers=None, scored=False, state={KEY: torch.zeros(2)}
    )
    reply = TrainReply(
        round=2,
        samples=5,
        metrics=dict.fromkeys(METRICS, 0.5),
        scores=[],
        seconds=1.0,
        problem="",
        state={KEY: torch.ones(2)},
    )
    reply, order = (FLModelUtils.to_shareable(to_model(message, round=2)) for message in (reply, order))
    return benchmark("hostile_replies").Sent(reply, order, FLModelUtils.to_shareable(reply_of_round_1()))


def reply_of_round_1():
    return to_model(
        TrainReply(round=1, samples=5, metrics=dict.fromkeys(METRICS), scores=[], seconds=1.0, problem="", state={}),
        round=1,
    )


def test_every_hostile_reply_differs_from_a_sound_one(benchmark):
    sound = repr(sent(benchmark).reply)
    for name, attack in benchmark("hostile_replies").REPLIES.items():
        changed = sent(benchmark)
        other = attack(changed)
        assert repr(other if isinstance(other, Shareable) else changed.reply) != sound, name


def test_every_lie_of_a_process_differs_from_the_truth(benchmark, monkeypatch):
    lying = benchmark("lying_processes")
    monkeypatch.setattr(lying, "_lies", lambda: {"other": "victim-1"})
    for name, lie in (lying.HELLOS | lying.GREETINGS | lying.ORDERS).items():
        message = sent(benchmark).order
        truth = repr(message)
        lie(message)
        assert repr(message) != truth, name


def test_the_sign_of_the_update_is_changed_and_not_that_of_the_adapter(benchmark):
    changed = sent(benchmark)
    changed.order["DXO"]["data"][KEY] += 3
    benchmark("hostile_replies").REPLIES["its update with the sign changed"](changed)
    assert torch.equal(changed.tensors[KEY], torch.full((2,), 5.0))


def test_a_round_whose_adapter_differs_is_printed_with_its_distance(attacks):
    small_run = sys.modules["small_run"]
    expected = [{KEY: torch.ones(4)}] * 2
    sites = {site: {} for site in small_run.SITES}
    run = small_run.Run(
        manifest={"status": "completed", "faults": []},
        rounds=[{"sites": sites}] * 2,
        tensors=b"",
        states={1: expected[0], 2: {KEY: torch.full((4,), 1.5)}},
    )
    assert attacks._outcome(run, 1, expected)[1] == "no reply; the global adapter is that of the other two to the bit"
    what, lost = attacks._outcome(run, 2, expected)
    assert what == "nothing was noticed"
    assert "the global adapter is 0.5 away" in lost


def test_a_cell_keeps_to_its_line(attacks):
    *_, row = attacks.table("title", iter([("a|b", "c\nd", "e")]))
    assert row == "| a\\|b | c d | e |"
    assert re.search("^\\| what was done", next(attacks.table("title", iter([]))), re.MULTILINE)


def test_members_are_found_above_all_but_one_in_a_hundred_of_the_others(benchmark):
    found = benchmark("inference_attacks")._found
    others, members = torch.arange(200.0), torch.tensor([197.5, 198.5, 100.5, -1.0])
    is_member = torch.tensor([0] * 200 + [1] * 4)
    area, share = found(torch.cat([others, members]), is_member)
    assert area == pytest.approx((198 + 199 + 101 + 0) / 800)
    assert share == 0.5  # two of the others lie above 197
    assert found(torch.zeros(204), is_member) == (pytest.approx(0.5), 0.0)


def test_the_row_before_any_training_has_each_seed_once(benchmark, monkeypatch):
    attack, shown = benchmark("inference_attacks"), []
    monkeypatch.setattr(attack, "show", lambda title, columns, rows, note: shown.append(rows))
    results = [
        {"seed": seed, "noise": noise} | {key: {"loss": (area, area)} for key in ("untrained", "first", "last")}
        for seed, area in enumerate((0.4, 0.6))
        for noise in (None, 0.0, 1.0)
    ]
    attack._show_membership(results, [None, 0.0, 1.0], 1.0, "")
    areas, shares = shown
    assert areas[0][2] == areas[1][2] == "0.50 ± 0.14"
    assert shares[0][2] == shares[1][2] == "50 ± 14"
