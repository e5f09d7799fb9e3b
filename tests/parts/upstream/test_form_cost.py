"""A form that is sent on to a model server is read in time proportional to its size."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from codex_proxy.core.faults import Fault
from codex_proxy.parts.upstream.forms import form_body
from tests.growth import assert_linear

PART = b'--x\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n'


@pytest.mark.parametrize(
    ("size", "files"),
    [
        (200, lambda n: PART % (b"a", b"b") * n),
        (4 << 20, lambda n: PART % (b"file", bytes(n))),
        (2000, lambda n: b"--x\r\n" + b"content-disposition:" * n + b"\r\n\r\n\r\n"),
    ],
)
def test_a_form_with_its_model_last_takes_time_proportional_to_its_size(
    size: int, files: Callable[[int], bytes]
) -> None:
    def read(form: bytes) -> None:
        with contextlib.suppress(Fault):
            form_body(memoryview(form), "multipart/form-data; boundary=x")

    assert_linear(lambda count: files(count) + PART % (b"model", b"m") + b"--x--\r\n", read, size)


def test_a_form_of_very_many_parts_is_not_read_to_its_end() -> None:
    form = PART % (b"a", b"b") * 1000 + PART % (b"model", b"m") + b"--x--\r\n"
    with pytest.raises(Fault, match="first 1000 parts"):
        form_body(form, "multipart/form-data; boundary=x")
