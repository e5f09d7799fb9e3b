"""The clients, each of which sends random requests, valid and invalid ones, and records the answers.

A client is done with a request when it has an answer, when the server was killed meanwhile, or after `PATIENCE`
seconds, when the request counts as unanswered.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import aiohttp

from codex_proxy.responses.running import NOT_SAVED
from codex_proxy.store.health import UNAVAILABLE
from scripts.torture_lib import requests
from scripts.torture_lib.answers import OVER, Answer, Api, Expected, read_response
from scripts.torture_lib.exchange import Exchange
from scripts.torture_lib.ledger import Conversation, Ledger
from scripts.torture_lib.requests import Question, Questions, tool

PATIENCE = 60.0
"""Seconds until a request counts as unanswered: three times all deadlines of the servers together."""
TURNS = 6
"""Turns of one conversation; then the model is asked for all of them, and a new conversation begins."""
NOT_STORED = (UNAVAILABLE.message, NOT_SAVED.message)
"""The errors of responses that could not be stored."""
APIS: tuple[Api, ...] = ("chat", "responses", "messages", "ollama")


class Client:
    """One client with one of the server's keys."""

    def __init__(self, ledger: Ledger, session: aiohttp.ClientSession, random: Random) -> None:
        self._ledger = ledger
        self._proxy = ledger.proxy
        self._random = random
        self._exchange = Exchange(ledger, session, random.choice(self._proxy.keys))
        self._questions = Questions(random, self._proxy.models, self._proxy.evil_models)
        self._conversation: tuple[str, Conversation] | None = None
        self._actions: list[tuple[Callable[[], Awaitable[None]], int]] = [
            (self._ask_ordinary, 25), (self._ask_faulty, 25), (self._create_stored, 20),
            (self._run_in_background, 20), (self._add_turn_to_conversation, 15), (self._continue_stored, 8),
            (self._answer_tool_call, 12), (self._use_socket, 8), (self._leave, 20),
            (self._leave_while_created, 10), (self._send_half_a_body, 5), (self._send_garbage, 5),
            (self._send_hostile_body, 3), (self._send_image, 2), (self._use_wrong_key, 3),
            (self._delete, 3), (self._call_mcp_tool, 5), (self._read, 5),
        ]  # fmt: skip
        if self._proxy.evil_models:
            self._actions += [(self._ask_evil_upstream, 20), (self._ask_evil_agent, 3)]
        if self._proxy.undisturbed is not None:
            self._actions.append((self._add_turns_at_once, 20))

    async def run(self, until: Callable[[], bool]) -> None:
        """Sends one request after the other."""
        actions, weights = zip(*self._actions, strict=True)
        while not until():
            await self._proxy.up.wait()
            if until():
                return
            [action] = self._random.choices(actions, weights)
            self._ledger.requests[action.__name__.strip("_")] += 1
            life = self._proxy.life
            try:
                async with asyncio.timeout(PATIENCE):
                    await action()
            except TimeoutError:
                self._ledger.stuck_requests.append(f"{action.__name__}: no answer within {PATIENCE:.0f} s")
            except (aiohttp.ClientError, ConnectionError) as error:
                if self._proxy.up.is_set() and self._proxy.life == life:
                    self._ledger.wrong.append(f"{action.__name__}: {type(error).__name__}: {error}")

    def _random_question(self, *, faulty: bool) -> Question:
        return self._questions.ordinary(self._random.choice(APIS), faulty=faulty)

    # --- ordinary requests ----------------------------------------------------------------------

    async def _ask_ordinary(self) -> None:
        await self._exchange.ask(self._random_question(faulty=False))

    async def _ask_faulty(self) -> None:
        await self._exchange.ask(self._random_question(faulty=True))

    async def _create_stored(self) -> None:
        question = self._questions.ordinary("responses")
        self._store(question.expected, await self._exchange.ask(question))

    def _store(self, expected: Expected, answer: Answer | None) -> None:
        """Records a response as stored, unless its error says that it could not be stored."""
        if answer is None or answer.body is None:
            return
        if (answer.body.get("error") or {}).get("message") not in NOT_STORED:
            self._ledger.store(answer.body, self._exchange.key, expected)

    async def _continue_stored(self) -> None:
        """Continues a stored response: the model must get its conversation, and no other."""
        mine = self._ledger.stored_of(self._exchange.key)
        if not mine:
            return
        id, before = self._random.choice(mine)
        if before.text is None:
            return
        nonce = self._questions.nonce()
        expected = Expected(nonce, None, frozenset({before.nonce}), frozenset({before.nonce, nonce}))
        question = self._questions.question_for("responses", f"{nonce} [[fake:echo]]", expected)
        answer = await self._exchange.ask(question.with_fields(previous_response_id=id))
        self._store(Expected(nonce, None, expected.may_contain), answer)

    async def _run_in_background(self) -> None:
        question = self._questions.ordinary("responses", faulty=self._random.random() < 0.3)
        body = question.body | {"background": True, "stream": False}
        _, queued = await self._exchange.send("POST", question.path, json.dumps(body).encode())
        if queued is None:
            return
        id, luck = queued["id"], self._random.random()
        self._ledger.background[id] = (self._exchange.key, question.expected)
        if luck < 0.1:
            await self._exchange.send("POST", f"/v1/responses/{id}/cancel", b"{}")
        elif luck < 0.3:
            await self._exchange.follow(id, question.expected)
        elif luck < 0.6:
            await self._poll(id, queued, question.expected)

    async def _poll(self, id: str, found: dict[str, Any], expected: Expected) -> None:
        while found["status"] not in OVER:
            await asyncio.sleep(0.05)
            _, again = await self._exchange.send("GET", f"/v1/responses/{id}")
            if again is None:
                return
            found = again
        self._exchange.compare(f"/v1/responses/{id}", expected, json.dumps(found), read_response(found))

    async def _add_turn_to_conversation(self) -> None:
        if self._conversation is None:
            _, made = await self._exchange.send("POST", "/v1/conversations", b"{}")
            if made is None:
                return
            conversation = Conversation(self._exchange.key)
            self._conversation = made["id"], conversation
            self._ledger.turns[made["id"]] = conversation
        id, conversation = self._conversation
        nonce = self._questions.nonce()
        conversation.nonces.append(nonce)
        is_last = len(conversation.acknowledged) >= TURNS
        expected = Expected(nonce, f"{nonce} it is", frozenset(conversation.nonces))
        marker = f"[[fake:text say='{nonce} it is']]"
        if is_last:
            must = frozenset(conversation.acknowledged)
            expected, marker = Expected(nonce, None, frozenset(conversation.nonces), must), "[[fake:echo]]"
            self._conversation = None
        question = self._questions.question_for("responses", f"{nonce} {marker}", expected)
        answer = await self._exchange.ask(question.with_fields(conversation=id))
        if answer is not None and answer.complete:
            conversation.acknowledged.append(nonce)

    async def _add_turns_at_once(self) -> None:
        """Sends two turns of a conversation at once: both are taken, and one of them sees the other."""
        _, made = await self._exchange.send("POST", "/v1/conversations", b"{}")
        before = self._proxy.undisturbed
        if made is None or before is None:
            return
        nonces = frozenset((self._questions.nonce(), self._questions.nonce()))
        questions = [
            self._questions.question_for(
                "responses", f"{nonce} [[fake:echo first=400]]", Expected(nonce, None, nonces)
            )
            for nonce in nonces
        ]
        asked = [
            self._exchange.ask(question.with_fields(conversation=made["id"], stream=False))
            for question in questions
        ]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        texts = ["".join(each.texts) for each in answers if isinstance(each, Answer) and each.complete]
        if len(texts) == len(nonces):
            if not any(all(nonce in text for nonce in nonces) for text in texts):
                self._ledger.unseen.append(f"{made['id']}: of two turns at once none has seen the other")
        elif before == self._proxy.undisturbed:
            self._ledger.wrong.append(f"{made['id']}: of two turns at once {len(texts)} were taken")
        for each in answers:
            if isinstance(each, BaseException):
                raise each

    async def _read(self) -> None:
        for path in ("/v1/models", "/v1/usage", "/healthz"):
            await self._exchange.send("GET", path)

    async def _delete(self) -> None:
        mine = self._ledger.stored_of(self._exchange.key)
        if not mine:
            return
        id, _ = self._random.choice(mine)
        self._ledger.forget(id)
        status, _ = await self._exchange.send("DELETE", f"/v1/responses/{id}")
        if status == 200:
            self._ledger.deleted[id] = self._exchange.key

    async def _use_socket(self) -> None:
        """Sends several turns over one WebSocket."""
        faulty = self._random.random() < 0.3
        questions = [self._questions.ordinary("responses", faulty=faulty) for _ in range(3)]
        await self._exchange.over_a_socket(questions, self._random)

    # --- tools ----------------------------------------------------------------------------------

    async def _answer_tool_call(self) -> None:
        """Has the model call a tool of the client, and answers the call in a second request; one call in four is left
        open.
        """
        nonce = self._questions.nonce()
        api = self._random.choice(APIS)
        arguments = json.dumps({"city": nonce})
        text = f"{nonce} [[fake:tool_call args='{arguments}']]"
        question = self._questions.question_for(api, text, Expected(nonce))
        question = question.with_fields(tools=[tool(api, strict=False)], stream=False)
        answer = await self._exchange.ask(question)
        if answer is None or answer.body is None or self._random.random() < 0.25:
            return
        again = _with_output(question, answer.body, f"{nonce} is sunny")
        if again is not None:
            await self._exchange.ask(again.with_expected(text=f"The tool said: {nonce} is sunny"))

    async def _call_mcp_tool(self) -> None:
        """Has the model call a tool of the operator's MCP server, which may die or hang."""
        name = self._random.choice(("echo", "die", "big", "noise", "refuse", "extra_7"))
        nonce = self._questions.nonce()
        arguments = json.dumps({"text": nonce, "size": 100_000})
        text = f"{nonce} [[fake:tool_call name=tools__{name} args='{arguments}']]"
        await self._exchange.ask(self._questions.question_for("responses", text, Expected(nonce)))

    # --- bad agents -----------------------------------------------------------------------------

    async def _ask_evil_upstream(self) -> None:
        await self._exchange.ask(self._questions.of_evil_upstream(self._random.choice(APIS)))

    async def _ask_evil_agent(self) -> None:
        await self._exchange.ask(self._questions.of_evil_agent(self._random.choice(APIS)))

    # --- bad clients ----------------------------------------------------------------------------

    async def _leave(self) -> None:
        """Reads a part of a stream, then closes the connection."""
        question = self._random_question(faulty=self._random.random() < 0.3).with_fields(stream=True)
        data = self._exchange.head(question.path, json.dumps(question.body).encode())
        await self._exchange.raw(data, read=self._random.randrange(4096), seconds=self._random.random())

    async def _leave_while_created(self) -> None:
        """Sends a whole request for a background response and does not wait for the answer."""
        question = self._questions.ordinary("responses").with_fields(background=True)
        data = self._exchange.head(question.path, json.dumps(question.body).encode())
        await self._exchange.raw(data, read=0, seconds=1)

    async def _send_half_a_body(self) -> None:
        question = self._random_question(faulty=False)
        data = self._exchange.head(question.path, json.dumps(question.body).encode())
        await self._exchange.raw(data[: self._random.randrange(1, len(data))], read=0, seconds=1)

    async def _send_garbage(self) -> None:
        data = self._random.choice(requests.GARBAGE) + os.urandom(16)
        await self._exchange.raw(data, read=4096, seconds=self._random.random())

    async def _send_hostile_body(self) -> None:
        body = self._random.choice(requests.hostile_bodies())
        await self._exchange.send("POST", "/v1/chat/completions", body)

    async def _send_image(self) -> None:
        body = requests.with_image(self._random, self._random.choice((1, 8, 40)))
        await self._exchange.send("POST", "/v1/chat/completions", json.dumps(body).encode())

    async def _use_wrong_key(self) -> None:
        await self._exchange.send("GET", "/v1/models", key="wrong")


def _with_output(question: Question, answered: dict[str, Any], output: str) -> Question | None:
    """Returns the request with the outputs of the calls in an answer; None if it has no calls."""
    if question.api == "chat":
        message = answered["choices"][0]["message"]
        if not (calls := message.get("tool_calls")):
            return None
        outputs = [{"role": "tool", "tool_call_id": call["id"], "content": output} for call in calls]
        return question.with_fields(messages=[*question.body["messages"], message, *outputs])
    if question.api == "responses":
        calls = [item for item in answered["output"] if item["type"] == "function_call"]
        outputs = [
            {"type": "function_call_output", "call_id": call["call_id"], "output": output} for call in calls
        ]
        return question.with_fields(previous_response_id=answered["id"], input=outputs) if calls else None
    if question.api == "ollama":
        message = answered["message"]
        if not (calls := message.get("tool_calls")):
            return None
        outputs = [
            {"role": "tool", "tool_name": call["function"]["name"], "content": output} for call in calls
        ]
        return question.with_fields(messages=[*question.body["messages"], message, *outputs])
    calls = [block for block in answered["content"] if block["type"] == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": call["id"], "content": output} for call in calls]
    said = [
        {"role": "assistant", "content": answered["content"]},
        {"role": "user", "content": results},
    ]
    return question.with_fields(messages=[*question.body["messages"], *said]) if calls else None
