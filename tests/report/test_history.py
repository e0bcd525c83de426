# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Reading history.json: what is accepted, and the message for every kind of damaged file."""

import json

import pytest
from histories import FIVE, gaps, record, write

from fedpeft.report import history_reader
from fedpeft.report.history_reader import HistoryError, parse, read


def test_folder_and_file_read_the_same(tmp_path):
    file = write(tmp_path, record())
    assert read(tmp_path) == read(file)


def test_reading_keeps_every_figure_of_the_file(tmp_path):
    made = gaps()
    history = read(write(tmp_path, made))
    assert (history.job, history.method, history.procedural) == (made["job"], made["method"], True)
    assert history.settings == {"method.gamma": "0.1", "method.integration": "two_branches", "seed": "0"}
    for one, entry in zip(history.rounds, made["rounds"], strict=True):
        given = {
            name: {**dict.fromkeys(("validation", "sent", "below_constant", "loss_start", "loss_end")), **result}
            for name, result in entry["sites"].items()
        }
        assert {name: vars(result) for name, result in one.sites.items()} == given
        assert (one.round, one.alignment, one.rejected) == (entry["round"], entry["alignment"], entry["rejected"])


def test_sites_stand_in_order_of_appearance_and_the_rejected_count():
    made = record(rounds=2)
    made["rounds"][0]["sites"].pop("slake")
    made["rounds"][1]["rejected"] = {"late": "no reply"}
    assert parse(made, origin="h").sites == (*FIVE[1:], "slake", "late")


def test_what_may_be_left_out_and_unknown_keys():
    made = record(rounds=1)
    for key in ("alignment", "rejected", "seconds"):
        del made["rounds"][0][key]
    for result in made["rounds"][0]["sites"].values():
        del result["loss"], result["samples"]
        result["f1"] = 0.5
    del made["settings"]
    one = parse(made, origin="h").rounds[0]
    assert one.seconds is None
    assert all(result.loss is None and result.samples is None for result in one.sites.values())


def test_control_characters_leave_a_reason_but_not_its_words():
    made = record(rounds=1)
    made["rounds"][0]["rejected"] = {"slake": "shape (3,)\nis \x1b[31mwrong"}
    assert parse(made, origin="h").rounds[0].rejected["slake"] == "shape (3,) is \N{REPLACEMENT CHARACTER}[31mwrong"


def set_at(*path, value):
    def change(made):
        for key in path[:-1]:
            made = made[key]
        made[path[-1]] = value

    return change


def remove(*path):
    def change(made):
        for key in path[:-1]:
            made = made[key]
        del made[path[-1]]

    return change


SITE = ("rounds", 1, "sites", "slake")
BROKEN = [
    ("no rounds", remove("rounds"), ["'rounds' is missing", "incomplete"]),
    ("empty rounds", set_at("rounds", value=[]), ["no finished round"]),
    ("rounds of nobody", set_at("rounds", value=[{"round": 1, "sites": {}}]), ["no round names a site"]),
    ("rounds no list", set_at("rounds", value={}), ["'rounds'", "a list"]),
    ("round no object", set_at("rounds", 1, value=3), ["entry 2 of 'rounds'", "3", "object"]),
    ("no job", remove("job"), ["'job' is missing"]),
    ("empty job", set_at("job", value=" "), ["'job'", "' '"]),
    ("procedural unsaid", remove("procedural"), ["'procedural' is missing"]),
    ("procedural a word", set_at("procedural", value="false"), ["'procedural'", "'false'", "true or false"]),
    ("source null", set_at("source", value=None), ["'source'", "None"]),
    ("no sites", remove("rounds", 1, "sites"), ["entry 2", "'sites' is missing"]),
    ("no open", remove(*SITE, "open"), ["entry 2", "'slake'", "'open' is missing"]),
    ("percent", set_at(*SITE, "open", value=51.0), ["'slake'", "'open'", "51.0", "fraction from 0 to 1"]),
    ("a word", set_at(*SITE, "overall", value="0.5"), ["'slake'", "'overall'", "'0.5'"]),
    ("a truth", set_at(*SITE, "closed", value=True), ["'slake'", "'closed'", "True"]),
    ("NaN", set_at(*SITE, "loss", value=float("nan")), ["'slake'", "'loss'", "nan", "finite"]),
    ("infinity", set_at(*SITE, "loss", value=float("inf")), ["'slake'", "'loss'", "inf", "finite"]),
    ("half an example", set_at(*SITE, "samples", value=1.5), ["'slake'", "'samples'", "1.5"]),
    ("distance below 0", set_at("rounds", 1, "alignment", "slake", value=-0.1), ["'slake'", "-0.1"]),
    ("reason no text", set_at("rounds", 1, "rejected", value={"slake": 3}), ["'slake'", "3"]),
    ("round number", set_at("rounds", 1, "round", value="2"), ["'round'", "'2'"]),
    ("round twice", set_at("rounds", 1, "round", value=1), ["round 1 follows round 1"]),
    ("a baseline in percent", set_at("tested", value={"slake": {"samples": 9, "baseline": 30}}), ["'baseline'", "30"]),
    (
        "a baseline of nothing",
        set_at("tested", value={"slake": {"baseline": 0.3}}),
        ["'slake'", "'samples' is missing"],
    ),
    ("control in a name", set_at("rounds", 1, "sites", "a\x1b", value={}), ["site's name", "control"]),
]


@pytest.mark.parametrize(("change", "words"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN])
def test_a_broken_history_is_refused_in_one_sentence(tmp_path, change, words):
    made = record()
    change(made)
    file = write(tmp_path, made)
    with pytest.raises(HistoryError) as caught:
        read(file)
    message = str(caught.value)
    assert message.startswith(str(file))
    assert all(word in message for word in words), message
    assert "\n" not in message
    assert len(message) < 300 + len(str(file))


@pytest.mark.parametrize("content", [b"", b"[]", b'{"job": "a", "rou', b"\xff\xfe{", b"[" * 100_000])
def test_a_file_that_is_no_history_is_refused_by_name(tmp_path, content):
    file = tmp_path / "history.json"
    file.write_bytes(content)
    with pytest.raises(HistoryError, match=r"history\.json"):
        read(file)


def test_a_missing_history_is_refused_with_what_to_name(tmp_path):
    with pytest.raises(HistoryError, match=r"history\.json does not exist; name a run's folder"):
        read(tmp_path)


def test_unknown_encoding_of_names_survives(tmp_path):
    made = record(("東京大学",), 1)
    (tmp_path / "history.json").write_text(json.dumps(made, ensure_ascii=False), encoding="utf-8")
    assert read(tmp_path).sites == ("東京大学",)


def test_a_file_of_few_megabytes_is_no_hour_of_drawing():
    made = record(rounds=1)
    many = {**made, "rounds": [{**made["rounds"][0], "round": n} for n in range(1, 300_001)]}
    made["settings"] = {"a" * 190: {"b" * 190: {"c" * 190: {"d" * 190: {"e" * 190: {"f" * 190: 1}}}}}}
    with pytest.raises(HistoryError, match="h has a setting with a name of 1,145 characters, at most 1,000 are read"):
        parse(made, origin="h")
    made["settings"] = {"sites": dict.fromkeys(map(str, range(20_002)), 1)}
    with pytest.raises(HistoryError, match="h has more than 20,000 settings"):
        parse(made, origin="h")
    with pytest.raises(HistoryError, match="h has 300,000 rounds"):
        parse(many, origin="h")


@pytest.mark.parametrize("scored", [True, False])
def test_no_model_has_more_layers_than_are_read(scored):
    made = record(rounds=1)
    numbers = list(range(5_000))
    scores = {"scores": {"slake": [1.0] * 5_000}} if scored else {"scores": {}, "numbers": numbers}
    made["rounds"][0]["schedule"] = {"layers": {"slake": [0]}, "front": [], "chosen": 0, **scores}
    with pytest.raises(HistoryError, match="at most 4,096"):
        parse(made, origin="h")


def test_rounds_times_sites_are_bounded(monkeypatch):
    made = record(rounds=3)
    monkeypatch.setattr(history_reader, "MAX_FIGURES", 3 * len(FIVE))
    assert parse(made, origin="h")
    monkeypatch.setattr(history_reader, "MAX_FIGURES", 3 * len(FIVE) - 1)
    with pytest.raises(HistoryError, match="h has 3 rounds of 5 sites, and rounds times sites may be at most 14: "):
        parse(made, origin="h")
