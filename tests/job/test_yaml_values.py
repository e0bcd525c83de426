# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What a YAML value of `--set` or of a file is: a decimal number, or text as it is written."""

from pathlib import Path

import pytest

from fedpeft.compare.grid import axis_of
from fedpeft.core.errors import FedpeftError
from fedpeft.job.composing import compose, parse_overrides
from fedpeft.job.yaml_values import parse, write

CONFIGS = Path(__file__).parents[2] / "app_configs"
JOB = "fedpia_task1"
TEXTS = ("010", "-07", "00", "08", "01.5", "01e3", "1:30", "1:30:00", "1:30.5", "0x10", "0o10", "0b11", "1_000")
DATES = ("2024-01-31", "2024-01-31 10:00:00", "2024-01-31T10:00:00Z")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[("0", 0), ("-0", 0), ("7", 7), ("-12", -12), ("+3", 3), ("1000", 1000), ("0.5", 0.5), ("-0.05", -0.05)],
        *[(".5", 0.5), ("-.5", -0.5), ("5.", 5.0), ("1e-4", 1e-4), ("1.5e-05", 1.5e-05), ("2E+3", 2000.0)],
        *[("-1.0e-4", -1e-4), (".5e3", 500.0), ("[1,2]", [1, 2]), ("{a: 0}", {"a": 0})],
    ],
)
def test_decimal_numbers_are_numbers(text, value):
    assert parse(text) == value
    assert type(parse(text)) is type(value)


@pytest.mark.parametrize("text", [*TEXTS, *DATES])
def test_what_old_yaml_counts_in_other_bases_is_text(text):
    assert parse(text) == text
    assert parse(f"[{text}]" if text not in DATES else f"- {text}") == [text]
    assert parse(f"'{text}': {text}") == {text: text}


@pytest.mark.parametrize("text", [*TEXTS, *DATES, "12", "1e5", "-.5", ".5e3", ".inf", "yes"])
def test_a_text_is_written_so_that_it_is_read_as_text(text):
    assert parse(write({"name": text, text: 1})) == {"name": text, text: 1}


@pytest.mark.parametrize("text", ["{a: 1, b: 2, a: 3}", "a: 1\nb: {c: 1, 'c': 2}", "a:\n  b: 1\na:\n  c: 2"])
def test_a_name_that_is_there_twice_is_refused(text):
    with pytest.raises(ValueError, match=r"the name '[ac]' is there twice, from line [12]"):
        parse(text)


@pytest.mark.parametrize("value", ["/mnt/site #2", "5 # quick", "[a, b #c\n]", "# all"])
def test_an_argument_has_no_comment(value):
    with pytest.raises(FedpeftError, match="what follows # would be left out as a comment, put the value in quotes"):
        parse_overrides([f"data.root={value}"])


@pytest.mark.parametrize("value", ["/mnt/site#2", "'/mnt/site #2'", "{a: 'b #', c#: d}"])
def test_another_hash_is_text(value):
    assert parse_overrides([f"data.root={value}"])["data"]["root"] == parse(value)


def test_a_comment_in_a_sweep_is_refused():
    with pytest.raises(FedpeftError, match="put the value in quotes"):
        axis_of("data.root=/a #1,/b #2", option="--sweep")


@pytest.mark.parametrize("text", [".inf", "-.inf", ".nan", "1e999"])
def test_numbers_that_are_not_finite_are_refused(text):
    with pytest.raises(ValueError, match="is not a finite number"):
        parse(text)


@pytest.mark.parametrize(
    ("setting", "value", "must"),
    [
        ("training.rounds", "010", "a whole number"),
        ("training.rounds", "1_000", "a whole number"),
        ("federation.round_timeout", "1:30", "a whole number"),
        ("training.learning_rate", "01e-3", "a number"),
    ],
)
def test_where_a_number_is_meant_another_form_is_refused(setting, value, must):
    with pytest.raises(FedpeftError, match=rf"{setting} is '{value}', it must be {must}: correct"):
        compose(CONFIGS, JOB, [f"{setting}={value}"])


def test_a_site_may_be_called_by_a_number_with_zeros_before_it():
    sites = parse_overrides(["federation.sites=[010, 2024-01-31]", "data.sites={010: {train_size: 8}}"])
    assert sites["federation"]["sites"] == ["010", "2024-01-31"]
    assert sites["data"]["sites"] == {"010": {"train_size": 8}}
