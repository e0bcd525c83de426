# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What the command may name, and its error messages where that does not exist or does not fit together."""

import json

import pytest

from fedpeft.core.errors import FedpeftError
from fedpeft.doctor import open_context


@pytest.mark.parametrize(("role", "name"), [("server", "localhost"), ("site", "slake"), ("admin", "lead@lab.org")])
@pytest.mark.parametrize("inner", ["", "startup"])
def test_a_kit_says_who_it_is_for(role, name, inner, make_kit):
    kit = open_context(startup_kit=make_kit(role, port=8123) / inner).kit
    assert (kit.role, kit.name, kit.host, kit.port) == (role, name, "localhost", 8123)
    assert kit.certificate.is_file()
    assert kit.key.is_file()


@pytest.mark.parametrize(
    ("role", "site", "expected"),
    [
        (None, None, ["slake", "vqa-rad"]),
        (None, "vqa-rad", ["vqa-rad"]),
        ("site", None, ["slake"]),
        ("server", None, []),
        ("admin", None, []),
    ],
)
def test_the_sites_that_train_here(role, site, expected, make_kit, make_job):
    job = make_job("federation.sites=[slake, vqa-rad]")
    kit = make_kit(role) if role else None
    assert list(open_context(job, startup_kit=kit, site=site).sites) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"job": "nothing"}, "is not a FLARE job folder, it has no meta.json"),
        ({"startup_kit": "nothing"}, "is not a start-up kit"),
        ({"site": "slake"}, "--site slake names a site of a job"),
        ({"job": "job", "site": "slak"}, "--site slak is not in federation.sites: did you mean 'slake'"),
        ({"job": "job", "startup_kit": "kit-site", "site": "slake"}, "exclude each other"),
    ],
)
def test_arguments_that_do_not_exist_or_fit_are_refused(arguments, message, make_kit, make_job, tmp_path):
    make_kit("site")
    make_job()
    found = {name: value if name == "site" else tmp_path / value for name, value in arguments.items()}
    with pytest.raises(FedpeftError, match=message):
        open_context(**found)


SITE_OF = '{"servers": [{"service": {"target": "PLACE"}}], "client": {"fqsn": "a"}}'
PLACES = ("host:99999999", "host:0", "host:1e999", f"{'x' * 70}:8002", "x..y:8002")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        *((SITE_OF.replace("PLACE", place), "does not name the participant") for place in PLACES),
        ("{", "cannot be read as JSON"),
        ("[]", "must be a JSON object, not list"),
        ("{}", "does not name the participant"),
        (
            '{"servers": [{"service": {"target": "localhost"}}], "client": {"fqsn": "a"}}',
            "does not name the participant",
        ),
        ('{"servers": {}, "client": {}}', "does not name the participant"),
    ],
)
def test_a_damaged_kit_is_refused(content, message, make_kit):
    folder = make_kit("site")
    (folder / "startup" / "fed_client.json").write_text(content)
    with pytest.raises(FedpeftError, match=message):
        open_context(startup_kit=folder)


@pytest.mark.parametrize(
    ("side", "change", "message"),
    [
        ("server", lambda config: "{", "cannot be read as JSON"),
        ("client", lambda config: "3", "holds int, not an object"),
        ("server", lambda config: json.dumps({**config, "workflows": []}), "workflows is"),
        ("client", lambda config: json.dumps({**config, "executors": [3]}), "executors is 3"),
        ("client", lambda config: None, "lacks app/config/config_fed_client.json"),
    ],
)
def test_a_damaged_job_is_refused(side, change, message, make_job):
    folder = make_job()
    file = folder / "app" / "config" / f"config_fed_{side}.json"
    changed = change(json.loads(file.read_text()))
    file.unlink() if changed is None else file.write_text(changed)
    with pytest.raises(FedpeftError, match=message):
        open_context(folder)
