"""Images in a request: which URLs may become an `ImagePart`. Raises `Fault` INVALID_REQUEST for the others."""

from __future__ import annotations

import re
from typing import Final

from codex_proxy.core.faults import bad_request
from codex_proxy.core.images import ACCEPTED, NoImageError, clean_data_url
from codex_proxy.core.items import ImagePart

_WEB_IMAGE: Final = re.compile(r"https?://\S", re.IGNORECASE)


def image_part(url: str, detail: str | None, place: str) -> ImagePart:
    """The image that `url` names, as a clean data URL where it is one; `place` is the field that holds it."""
    return ImagePart(image_url(url, place), detail)


def image_url(url: str, place: str) -> str:
    """The same, without the part around it."""
    url = url.strip()
    if _WEB_IMAGE.match(url):
        return url
    if url[:5].lower() != "data:":
        raise bad_request("Invalid image: expected a 'data:image/<type>;base64,' URL or an https URL.", place)
    try:
        return clean_data_url(url)
    except NoImageError as why:
        raise bad_request(
            f"Invalid image: the data {why}. Accepted is {ACCEPTED} that is whole, in base64.",
            place,
            "invalid_base64_image" if "base64" in str(why) else "invalid_image",
        ) from None
