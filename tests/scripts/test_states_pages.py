"""The diagrams of states in the documents are those of the tables in the code."""

from __future__ import annotations

from scripts import gen_states


def test_the_diagrams_are_current() -> None:
    for page, text in gen_states.pages():
        assert page.read_text("utf-8") == text, "run `python -m scripts.gen_states`"
