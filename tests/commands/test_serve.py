"""What serving changes in the process."""

from __future__ import annotations

import gc
import resource

from codex_proxy.commands.serve import COLLECT_AFTER, raise_open_files, tune_gc


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


def test_a_server_takes_as_many_open_files_as_the_system_permits() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
        raise_open_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
