"""Two servers behind a pooler, which gives each transaction another connection: they get no notices, and may leave
nothing in a session.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.http_responses.asking import create, prompt_for
from tests.parts.machines.two_servers.conftest import HELD_PROMPT, MakePair
from tests.parts.machines.two_servers.test_background import follow_elsewhere, leases_of
from tests.parts.machines.two_servers.test_turns import items_of
from tests.parts.sessions.driving import AgentsClient, message
from tests.postgres import empty, server


@pytest.mark.exhaustive
async def test_behind_a_pooler_servers_find_by_asking_what_the_other_does(pair_with: MakePair) -> None:
    with server() as own:
        await empty(own.url)
        async with own.pooler() as url, pair_with(store=url) as pair:
            assert leases_of(pair.one)._notices._listening is None
            await follow_elsewhere(pair)
            conversation = (await pair.at_one.conversations.create()).id
            answers = await asyncio.gather(
                *(
                    create(proxy, prompt_for("Hello."), conversation=conversation)
                    for proxy in (pair.one, pair.two) * 2
                )
            )
            assert {answer.status for answer in answers} == {200}
            assert len(await items_of(pair.two, conversation)) == 8


@pytest.mark.exhaustive
async def test_behind_a_pooler_input_and_events_of_a_session_reach_the_other_server(
    pair_with: MakePair,
) -> None:
    with server() as own:
        await empty(own.url)
        async with own.pooler() as url, pair_with(store=url) as pair:
            one, two = AgentsClient(pair.one), AgentsClient(pair.two)
            id = (await one.new_session(HELD_PROMPT))["id"]
            async with two.following(id) as reader:
                await two.send(id, message("[[fake:text say=Next.]]"))
                pair.release.touch()
                for _ in range(2):
                    await reader.until("agent.session.turn.completed")
                await reader.until("agent.session.idle")
