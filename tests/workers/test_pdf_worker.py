"""The text of PDFs, as the worker reads it: what real programs write, and what cannot be read."""

from __future__ import annotations

import pytest

from codex_proxy.workers import pdf_worker
from codex_proxy.workers.pdf_worker import PdfQuestion, read_pdf
from tests import pdfs

NO_TEXT = "has no text that can be read: its pages are scanned, or their fonts have no character map"


def text_of(data: bytes) -> str:
    answer = read_pdf(PdfQuestion(data))
    assert answer.wrong is None
    return answer.text


def wrong_with(data: bytes) -> str | None:
    answer = read_pdf(PdfQuestion(data))
    assert answer.text == ""
    return answer.wrong


def test_each_page_stands_under_its_number() -> None:
    assert text_of(pdfs.pdf("Grüße.", "Two.")) == "[page 1 of 2]\nGrüße.\n\n[page 2 of 2]\nTwo."


def test_a_page_without_text_between_others_is_named() -> None:
    assert text_of(pdfs.pdf("One.", "", "Three.")).split("\n\n")[1] == "[page 2 of 3: no text]"


def test_what_is_filled_into_a_form_is_reported() -> None:
    text = text_of(pdfs.form("Order.", name="Ann", city="", note="two\x00lines"))
    assert text == "[page 1 of 1]\nOrder.\n\n[fields of the form]\nname: Ann\nnote: twolines"


def test_a_pdf_that_only_forbids_to_print_is_read() -> None:
    assert text_of(pdfs.encrypted_pdf("Hello.", password="")) == "[page 1 of 1]\nHello."


@pytest.mark.parametrize("in_form", [False, True])
@pytest.mark.parametrize("encoding", ["/Identity-H", "embedded"])
def test_a_font_is_read_by_what_maps_it_to_unicode(encoding: str, in_form: bool) -> None:
    assert text_of(pdfs.glyphs(encoding=encoding, in_form=in_form)) == "[page 1 of 1]\nHi"


@pytest.mark.parametrize(
    "data",
    [pdfs.scan(), pdfs.scan(3), pdfs.pdf(""), pdfs.glyphs(encoding="embedded", to_unicode=False)],
    ids=["a scan", "three scans", "an empty page", "a font that tells nothing"],
)
def test_a_pdf_without_text_says_so(data: bytes) -> None:
    assert wrong_with(data) == NO_TEXT


def test_a_pdf_that_takes_a_password_says_so() -> None:
    assert (
        wrong_with(pdfs.encrypted_pdf("Hello.", password="secret"))
        == "is encrypted: send it without a password"
    )


@pytest.mark.parametrize("kind", pdfs.broken_pdfs())
def test_what_is_no_whole_pdf_is_damaged(kind: str) -> None:
    wrong = wrong_with(pdfs.broken_pdfs()[kind])
    assert wrong is not None
    assert wrong.startswith("is damaged")


def test_a_pdf_without_pages_says_so() -> None:
    data = pdfs.by_hand(b"<</Type/Catalog/Pages 2 0 R>>", b"<</Type/Pages/Count 0/Kids[]>>")
    assert wrong_with(data) == "has no pages"


def test_pages_and_characters_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    data = pdfs.pdf("One.", "Two.", "Three.")
    monkeypatch.setattr(pdf_worker, "MAX_PAGES", 3)
    monkeypatch.setattr(pdf_worker, "MAX_CHARS", 14)
    assert text_of(data).endswith("Three.")
    monkeypatch.setattr(pdf_worker, "MAX_CHARS", 13)
    assert wrong_with(data) == "has more than 13 characters of text"
    monkeypatch.setattr(pdf_worker, "MAX_PAGES", 2)
    assert wrong_with(data) == "has 3 pages: at most 2 are read"
