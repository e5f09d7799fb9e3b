"""The cards with which the page asks a person."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.async_api import Locator


async def press(card: Locator, name: str) -> None:
    """Presses a button of a card until the card takes it: it takes no press when it has just moved."""
    element = await card.element_handle()
    is_answered = "card => !card.isConnected || card.querySelector('[role=status]').textContent !== ''"
    while not await element.evaluate(is_answered):
        button = await element.query_selector(f"button:text('{name}')")
        if button is not None and await button.get_attribute("aria-disabled") == "false":
            await button.click()
