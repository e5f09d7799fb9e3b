"""The worker that reads PDFs, with less patience than the real one."""

from __future__ import annotations

from codex_proxy.workers.pdf_worker import MEMORY_BYTES, PdfQuestion, read_pdf
from codex_proxy.workers.worker_process import run


def main() -> None:
    run(PdfQuestion, read_pdf, cpu_seconds=2.0, memory_bytes=MEMORY_BYTES)
