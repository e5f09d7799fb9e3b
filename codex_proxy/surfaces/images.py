"""Images in a request: which URLs may become an `ImagePart`. Raises `Fault` INVALID_REQUEST for the others."""

from __future__ import annotations

import re
from typing import Final

from codex_proxy.core.faults import bad_request
from codex_proxy.core.items import ImagePart

_DATA_IMAGE: Final = re.compile(r"data:image/[a-z0-9.+-]+;base64,\S", re.IGNORECASE)
_WEB_IMAGE: Final = re.compile(r"https?://\S", re.IGNORECASE)


def image_part(url: str, detail: str | None, place: str) -> ImagePart:
    """The image that `url` names; `place` is the field that holds it."""
    if not (_DATA_IMAGE.match(url) or _WEB_IMAGE.match(url)):
        raise bad_request("Invalid image: expected a 'data:image/<type>;base64,' URL or an https URL.", place)
    return ImagePart(url, detail)
