"""Secrets are found by their form or by the name of their field, and what is left is valid JSON."""

from __future__ import annotations

import json

import pytest

from codex_proxy.cassettes.scrubbing import Scrubber

SECRETS = ("planted", 'a "planted" one', "back\\slash\\", "line\nbreak", "planted é")


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("name", ["password", "X-Api-Key", "client_secret"])
def test_the_value_of_a_secret_field_is_replaced_also_in_a_string_of_json(name: str, secret: str) -> None:
    said = {"city": "Paris", name: secret, "unit": "C"}
    line = json.dumps({"arguments": json.dumps(said), "headers": said, "end": 1})
    found = json.loads(Scrubber({}).scrub((), line.encode()))
    kept = {**said, name: "<key>"}
    assert found == {"arguments": json.dumps(kept), "headers": kept, "end": 1}


@pytest.mark.parametrize(
    ("said", "written"),
    [
        ("use sk-planted0123 now", "use <key> now"),
        ("ghp_plantedplanted and AKIAPLANTEDPLANTED00", "<key> and <key>"),
        ("Authorization: Bearer planted.0123", "Authorization: Bearer <key>"),
        ("-----BEGIN RSA PRIVATE KEY-----planted-----END RSA PRIVATE KEY-----", "<key>"),
        ("ASIAPLANTEDPLANTED00 dckr_pat_planted0123456789ab", "<key> <key>"),
        ("SG.planted0123456789ab.planted0123456789abcdef", "<key>"),
        ("ya29.planted0123456789", "<key>"),
        ("AccountName=a;AccountKey=cGxhbnRlZHBsYW50ZWQ=;E=x", "AccountName=a;AccountKey=<key>;E=x"),
        ("task-planted0123 and asking Basic things", "task-planted0123 and asking Basic things"),
    ],
)
def test_a_secret_of_a_known_form_is_replaced(said: str, written: str) -> None:
    line = json.dumps({"delta": said}).encode()
    assert json.loads(Scrubber({}).scrub((), line)) == {"delta": written}
