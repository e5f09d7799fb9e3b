"""The state folder: nobody but its owner looks into it.

In: the settings' folder. It is made as it should be by whoever first needs it; here one that was left open is closed,
where it is certain to be ours alone. Files in it are closed one by one, wherever it is.
"""

from __future__ import annotations

import os
from pathlib import Path

import structlog

from codex_proxy.config import default_state_dir
from codex_proxy.files import private

log = structlog.get_logger(__name__)


def close_to_others(folder: Path) -> None:
    """Takes away others' permissions on the default folder. A folder that the operator named may have other uses:
    `codex-proxy doctor` speaks of its permissions."""
    if folder != default_state_dir().absolute():
        return
    try:
        if private.close_to_others(Path(os.path.realpath(folder))):
            log.warning("state_folder_closed", folder=str(folder))
    except FileNotFoundError:
        return  # it will be made closed
    except OSError as error:
        log.warning("state_folder_open", folder=str(folder), reason=error.strerror)
