"""What serving changes in the process."""

from __future__ import annotations

import gc

from codex_proxy.commands.serve import COLLECT_AFTER, tune_gc


def test_the_collector_looks_seldom_and_not_at_what_was_there_before_the_first_request() -> None:
    before = gc.get_threshold()
    try:
        tune_gc()
        assert gc.get_threshold()[0] == COLLECT_AFTER
        assert gc.get_freeze_count() > 0
        assert gc.isenabled()
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
