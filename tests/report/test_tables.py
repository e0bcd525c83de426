# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Tables on the terminal, as Markdown and as CSV: nothing is lost, nothing is invented."""

import csv
import io
import re

import pytest
from histories import FIVE, PROCEDURAL, complete, gaps, record
from rich.cells import cell_len

from fedpeft.compare.outcome import outcome_of
from fedpeft.core.console import Console
from fedpeft.core.errors import FedpeftError
from fedpeft.core.metrics import describe_means, means_of
from fedpeft.report.history_reader import parse
from fedpeft.report.outputs import markdown, page, print_tables, tidy_csv
from fedpeft.report.page_parts import Picture
from fedpeft.report.tables import all_tables, best_round, by_round, last_round, sent
from fedpeft.report.wording import means, series

METRICS = ("overall", "open", "closed")
NO_BETTER = "slake: no better than a constant answer for 3 rounds: set another training.learning_rate"
TEN = (*FIVE, "ct", "ultrasound", "fundus", "dermatoscopy", "histology")
CASES = {
    "five": record(),
    "one": record(("hospital",), 1, procedural=False),
    "ten": record(TEN, 30, seed=1),
    "gaps": gaps(),
    "long": record(("Universitätsklinikum Hamburg-Eppendorf, Radiologie 2", "a" * 70, "b"), 2),
    "odd": record(("[red]a[/red]", "b|c", "_d_ *e*", "<i>f</i>", "東京大学", "mean"), 2),
}


def terminal(made, width=100, metrics=METRICS, encoding="utf-8"):
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    print_tables(parse(made, origin="h"), console=Console(file=file, width=width, color_system=None), metrics=metrics)
    file.flush()
    return raw.getvalue().decode(encoding)


def shown(value):
    return "–" if value is None else f"{100 * value:.1f}"


@pytest.mark.parametrize("made", CASES.values(), ids=CASES)
def test_tables_hold_every_figure_at_its_place(made):
    history = parse(made, origin="h")
    for metric in METRICS:
        table = by_round(history, metric)
        assert table.columns == ("round", *history.sites, "mean")
        for entry, row in zip(made["rounds"], table.rows, strict=True):
            assert row[0] == str(entry["round"])
            for site, cell in zip(history.sites, row[1:-1], strict=True):
                if site in entry["rejected"]:
                    assert cell == "×"
                else:
                    assert cell == shown(entry["sites"].get(site, {}).get(metric))
    for row in last_round(history).rows[:-1]:
        result = made["rounds"][-1]["sites"].get(row[0])
        if result is not None:
            figures = [shown(result[metric]) for metric in METRICS]
            assert row[1:] == (*figures, f"{result['loss']:.3f}", str(result["samples"]))


def test_a_mean_weighted_by_samples_stands_beside_the_plain_one():
    made = record(("north", "south"), 2)
    made["tested"] = {"north": {"samples": 300, "baseline": 0.4}, "south": {"samples": 100, "baseline": 0.2}}
    for one in made["rounds"]:
        one["sites"]["north"] |= {"overall": 0.8, "open": 0.6, "closed": None, "loss": 1.0, "samples": 900}
        one["sites"]["south"] |= {"overall": 0.4, "open": 0.2, "closed": 0.3, "loss": 2.0, "samples": 100}
    history = parse(made, origin="h")
    table = last_round(history)
    assert table.rows[-2:] == (
        ("mean", "60.0", "40.0", "30.0", "30.0", "1.500", "500", "200"),
        ("weighted mean", "70.0", "–", "–", "35.0", "1.100", "", ""),  # no site tells its open questions
    )
    assert "weighted mean: by the number of test samples, the loss by that of training samples" in table.marks
    rounds = by_round(history)
    assert rounds.columns == ("round", "north", "south", "mean", "weighted mean")
    assert rounds.rows == (("1", "80.0", "40.0", "60.0", "70.0"), ("2", "80.0", "40.0", "60.0", "70.0"))
    assert "weighted mean" in terminal(made)
    assert "weighted mean" in markdown(history)
    assert by_round(history, "open").columns == ("round", "north", "south", "mean")
    assert by_round(history, "open").rows[0] == ("1", "60.0", "20.0", "40.0")


@pytest.mark.parametrize("tested", [{}, {"north": {"samples": 300}}], ids=["old history", "one of two sites"])
def test_without_the_number_of_test_samples_there_is_no_weighted_mean(tested):
    made = record(("north", "south"), 1) | {"tested": tested}
    history = parse(made, origin="h")
    assert [row[0] for row in last_round(history).rows] == ["north", "south", "mean"]
    assert by_round(history).columns[-1] == "mean"


def test_of_equally_many_test_samples_the_rounds_have_the_plain_mean_alone():
    made = record(("north", "south"), 1) | {"tested": {site: {"samples": 150} for site in ("north", "south")}}
    history = parse(made, origin="h")
    assert last_round(history).rows[-1][:2] == ("weighted mean", last_round(history).rows[-2][1])
    assert by_round(history).columns[-1] == "mean"


def test_the_baseline_and_the_number_of_test_examples_stand_beside_the_last_round():
    made = record(("north", "south", "west"), 1)
    made["tested"] = {"north": {"samples": 120, "baseline": 0.25}, "south": {"samples": 60, "baseline": None}}
    table = last_round(parse(made, origin="h"))
    assert table.columns[4:] == ("baseline", "loss", "train", "test")
    assert [(row[4], row[-1]) for row in table.rows] == [("25.0", "120"), ("–", "60"), ("–", "–"), ("25.0*", "90*")]
    assert table.marks.endswith("baseline: what a constant answer reaches, loss: of training, examples: train, test")
    assert "25.0" in markdown(parse(made, origin="h"))
    made["rounds"][-1]["sites"]["west"]["overall"] = None  # it never tells a figure, so that none is missed
    assert [(row[4], row[-1]) for row in last_round(parse(made, origin="h")).rows[3:]] == [("25.0*", "90")]
    made["tested"]["north"]["baseline"] = None
    table = last_round(parse(made, origin="h"))
    assert table.columns[4:] == ("loss", "train", "test")
    assert "baseline" not in table.marks


@pytest.mark.parametrize("made", CASES.values(), ids=CASES)
@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_terminal_loses_no_figure_at_any_width(made, width):
    printed = terminal(made, width)
    tables = all_tables(parse(made, origin="h"))
    expected = sorted(cell for table in tables for row in table.rows for cell in row[1:] if cell not in "–×")
    printed_figures = sorted(re.findall(r"(?<![\w.])\d+\.\d+\*?(?!\S)", printed))
    assert printed_figures == [cell for cell in expected if "." in cell]
    for result in made["rounds"][-1]["sites"].values():
        assert re.search(rf"(?<!\S){result['samples']}(?!\S)", printed)
    assert "…" not in printed
    assert max(map(cell_len, printed.splitlines()[1:4])) <= width


@pytest.mark.parametrize("made", CASES.values(), ids=CASES)
def test_names_and_figures_stand_in_markdown_and_csv(made):
    text, rows = markdown(parse(made, origin="h")), list(csv.DictReader(io.StringIO(tidy_csv(parse(made, origin="h")))))
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if line.startswith("|")]
    plain = [[re.sub(r"\\(.)", r"\1", cell).strip() for cell in line] for line in cells]
    plain = [[cell.replace("&lt;", "<").replace("&gt;", ">") for cell in line] for line in plain if ":---" not in line]
    tables = all_tables(parse(made, origin="h"))
    assert plain == [list(line) for table in tables for line in (table.columns, *table.rows)]
    by_place = {(int(row["round"]), row["site"]): row for row in rows}
    assert len(by_place) == len(rows)
    for entry in made["rounds"]:
        for site in parse(made, origin="h").sites:
            row, result = by_place.pop((entry["round"], site)), entry["sites"].get(site, {})
            for name in (*METRICS, "loss", "samples"):
                assert row[name] == ("" if result.get(name) is None else str(result[name]))
            assert row["alignment"] == str(entry["alignment"].get(site, ""))
            assert row["reason"] == entry["rejected"].get(site, "")
            assert row["status"] == ("rejected" if site in entry["rejected"] else "replied" if result else "absent")
    assert not by_place


@pytest.mark.parametrize("procedural", [True, False])
def test_the_warning_stands_at_every_table_exactly_when_the_data_are_procedural(procedural):
    made = record(rounds=2, procedural=procedural)
    history = parse(made, origin="h")
    assert terminal(made).count(PROCEDURAL) == 4 * procedural
    assert markdown(history).count(PROCEDURAL) == 4 * procedural
    notes = [row["note"] for row in csv.DictReader(io.StringIO(tidy_csv(history)))]
    assert notes == [PROCEDURAL * procedural] * 10


def test_the_name_of_a_job_is_no_formula():
    rows = csv.DictReader(io.StringIO(tidy_csv(parse(record() | {"job": "=1+1"}, origin="h"))))
    assert {row["job"] for row in rows} == {"'=1+1"}


def test_marks_are_explained_exactly_where_they_stand():
    for table in all_tables(parse(gaps(), origin="h")):
        cells = [cell for row in table.rows for cell in row[1:]]
        assert ("–" in cells) == ("– no figure" in table.marks)
        assert ("×" in cells) == ("× reply rejected" in table.marks)
        assert any("*" in cell for cell in cells) == ("* mean over fewer sites" in table.marks)
    last, *others = all_tables(parse(record(), origin="h"))
    assert last.marks == "loss: of training, examples: train"
    assert {table.marks for table in others} == {""}


def test_the_mean_is_over_the_sites_that_have_a_figure():
    made = gaps()
    history = parse(made, origin="h")
    for metric in METRICS:
        for entry, mean in zip(made["rounds"], means(history, metric), strict=True):
            values = [r[metric] for r in entry["sites"].values() if r[metric] is not None]
            assert mean.value == pytest.approx(sum(values) / len(values))
            # vqa-rad has no open figure, which cannot be missed; histology's replies were all refused
            every = {"overall": 10, "open": 8}.get(metric, 9)
            assert (mean.count, mean.every) == (len(values), every)
            assert mean.complete == (len(values) == every)


def test_the_baseline_of_a_mean_is_that_of_the_sites_in_it():
    made = record(("a", "b", "refused"), 2)
    made["tested"] = {
        "a": {"samples": 100, "baseline": 0.2},
        "b": {"samples": 300, "baseline": 0.1},
        "refused": {"samples": 800, "baseline": 0.6},
    }
    del made["rounds"][-1]["sites"]["refused"]
    made["rounds"][-1]["rejected"] = {"refused": "NaN"}
    table = last_round(parse(made, origin="h"))
    column = table.columns.index("baseline")
    assert {row[0]: row[column] for row in table.rows[-2:]} == {"mean": "15.0*", "weighted mean": "12.5*"}


def test_equal_figures_of_two_rounds_have_equal_means_and_the_first_is_the_best():
    made = record(("a", "b", "c", "d", "e"), 2)
    shares = [round(right / 24, 12) for right in (11, 9, 10, 8, 8)]
    for one, order in zip(made["rounds"], ([0, 1, 2, 3, 4], [3, 2, 0, 4, 1]), strict=True):
        for site, place in zip("abcde", order, strict=True):
            one["sites"][site] |= {"validation": shares[place]}
    assert best_round(parse(made, origin="h")).rows[0][1] == "1"


def test_a_mean_is_the_same_in_every_table():
    made = record(("a", "b", "c", "d"), 1)
    for site, share in zip("abcd", (0.375, 0.45, 0.475, 0.45), strict=True):
        made["rounds"][0]["sites"][site]["overall"] = share
    made["tested"] = {site: {"samples": 40, "baseline": 0.1} for site in "abcd"}
    history = parse(made, origin="h")
    assert [row[1] for row in last_round(history).rows[-2:]] == ["43.8", "43.8"]
    figures = made["rounds"][0]["sites"]
    assert describe_means(means_of({}, {site: one["overall"] for site, one in figures.items()})) == "accuracy 43.8 %"
    assert f"{outcome_of(history, method='a').figure('accuracy'):.1f}" == "43.8"


def test_what_was_refused_is_missing_in_what_was_sent():
    made = complete(2)
    made["rounds"][0]["rejected"] = {"b": made["rounds"][0]["sites"].pop("b") and "too long"}
    table = sent(parse(made, origin="h"))
    assert [row[-1] for row in table.rows] == ["1.000*", "3.000*"]


def test_rejections_are_listed_once_for_each_reason():
    printed = terminal(gaps())
    assert printed.count("layer.3.output.up.weight holds NaN") == 1
    assert "ct, rounds 5, 9: reply rejected" in printed
    assert "- ct, rounds 5, 9: reply rejected" in markdown(parse(gaps(), origin="h"))


def test_names_are_printed_not_read_as_markup():
    printed, text = terminal(CASES["odd"], 200), markdown(parse(CASES["odd"], origin="h"))
    for name in ("[red]a[/red]", "b|c", "_d_ *e*", "<i>f</i>", "東京大学"):
        assert printed.count(name) == 4  # a row of the last round, the head of three columns
    for name in (r"\[red\]a\[/red\]", r"b\|c", r"\_d\_ \*e\*", "&lt;i&gt;f&lt;/i&gt;", "東京大学"):
        assert text.count(name) == 4


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_without_unicode_still_gets_its_tables(encoding):
    printed = terminal(gaps(), encoding=encoding)
    assert "75.5" in printed
    assert PROCEDURAL in printed


@pytest.mark.parametrize("write", [markdown, tidy_csv])
def test_same_history_same_text(write):
    assert write(parse(gaps(), origin="a")) == write(parse(gaps(), origin="b"))


def test_unknown_names_are_refused():
    history = parse(record(), origin="h")
    with pytest.raises(FedpeftError, match="'f1'; choose from overall, open, closed"):
        by_round(history, "f1")
    with pytest.raises(FedpeftError, match="'speed'"):
        series(history, "speed")


def measured_by(metrics, **changes):
    """A run whose sites are measured by these metrics; only accuracy has parts."""
    made = record(rounds=2, **changes)
    made["metrics"] = metrics
    for entry in made["rounds"]:
        for site, figures in entry["sites"].items():
            if metrics.get(site, "accuracy") != "accuracy":
                figures |= {"open": None, "closed": None}
    return made


def test_a_run_measured_by_macro_f1_has_one_figure():
    made = measured_by(dict.fromkeys(FIVE, "macro_f1"))
    history = parse(made, origin="h")
    assert last_round(history).title == "Macro-F1 (%) after round 2"
    assert last_round(history).columns == ("site", "overall", "loss", "train")
    assert [table.title for table in all_tables(history)[1:]] == ["Macro-F1 (%), round by round"]
    assert "open" not in terminal(made)


def test_sites_of_two_metrics_have_a_mean_of_each():
    mixed = measured_by({"slake": "macro_f1", "vqa-rad": "macro_f1"})
    history = parse(mixed, origin="h")
    table = last_round(history)
    assert table.title == "Macro-F1 or accuracy (%) after round 2"
    assert table.columns[:3] == ("site", "metric", "overall")
    assert [row[:2] for row in table.rows[-2:]] == [("mean", "macro-F1"), ("mean", "accuracy")]
    last = mixed["rounds"][-1]["sites"]
    for row, sites in zip(table.rows[-2:], (FIVE[:2], FIVE[2:]), strict=True):
        assert row[2] == f"{100 * sum(last[site]['overall'] for site in sites) / len(sites):.1f}"
    assert by_round(history).columns[-2:] == ("mean macro-F1", "mean accuracy")
    of_questions = by_round(history, "closed")
    assert of_questions.columns == ("round", *FIVE[2:], "mean")
    assert of_questions.title == "Accuracy (%) on closed questions, round by round"
    assert terminal(mixed).count("mean") >= 4
    assert "macro-F1" in markdown(history)


def validated(values):
    """A run of as many rounds, with these means on validation."""
    made = record(rounds=len(values))
    for entry, value in zip(made["rounds"], values, strict=True):
        for place, figures in enumerate(entry["sites"].values()):
            figures["validation"] = None if value is None else value + 0.01 * (place - 2)
    return made


@pytest.mark.parametrize(
    ("values", "best"),
    [([0.2, 0.5, 0.4], 2), ([0.5, 0.5, 0.4], 1), ([None, 0.3, None], 2), ([0.1, 0.2, 0.3], 3)],
)
def test_the_best_round_is_that_of_the_validation_splits(values, best):
    made = validated(values)
    history = parse(made, origin="h")
    table = best_round(history)
    assert [row[1] for row in table.rows] == [str(best), "3"]
    overall = [site["overall"] for site in made["rounds"][best - 1]["sites"].values()]
    assert float(table.rows[0][2]) == pytest.approx(100 * values[best - 1], abs=0.06)
    assert float(table.rows[0][3]) == pytest.approx(100 * sum(overall) / 5, abs=0.06)
    assert "best by validation" in terminal(made)
    assert "Best round" in markdown(history)


def test_a_round_that_lacks_a_site_is_not_the_best():
    made = validated([0.2, 0.6, 0.4])
    del made["rounds"][1]["sites"]["slake"]
    assert [row[1] for row in best_round(parse(made, origin="h")).rows] == ["3", "3"]


def test_where_every_round_lacks_a_site_none_is_the_best():
    made = validated([0.2, 0.6, 0.4])
    for one, site in zip(made["rounds"], ("slake", "vqa-rad", "slake"), strict=True):
        del one["sites"][site]
    assert best_round(parse(made, origin="h")) is None


def test_each_metric_has_its_own_best_round():
    made = validated([0.2, 0.6, 0.4])
    made["metrics"] = {"slake": "macro_f1"}
    made["rounds"][0]["sites"]["slake"]["validation"] = 0.9
    rows = best_round(parse(made, origin="h")).rows
    assert [row[:2] for row in rows] == [
        ("best by validation, macro-F1", "1"),
        ("last, macro-F1", "3"),
        ("best by validation, accuracy", "2"),
        ("last, accuracy", "3"),
    ]


def test_without_validation_no_round_is_the_best():
    assert best_round(parse(record(), origin="h")) is None
    assert best_round(parse(validated([None, None]), origin="h")) is None


def test_an_unknown_metric_is_refused_by_name():
    with pytest.raises(FedpeftError, match="site 'slake': 'metrics' is 'f2'"):
        parse(measured_by({"slake": "f2"}), origin="h")


@pytest.mark.parametrize("last", [1.0, 0.0, None])
def test_a_site_that_is_no_better_than_a_constant_answer_is_named_in_all_forms(last):
    made = record()
    for one, below in zip(made["rounds"], (None, None, 1.0, 1.0, last), strict=True):
        one["sites"]["slake"]["below_constant"] = below
    history = parse(made, origin="h")
    nothing = {"curves": Picture(b"")}
    shown = " ".join(terminal(made).split())
    forms = (shown, markdown(history), page(history, nothing).replace("Slake", "slake"))
    assert [NO_BETTER in form for form in forms] == [last == 1] * 3
