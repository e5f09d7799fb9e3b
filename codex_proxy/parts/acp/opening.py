"""The opening of a session until its first prompt: sets mode, model and effort, and waits until the agent has listed
the client's tools. Without IO.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

from codex_proxy.agents.dialects.conversation import NO_TURN, ChannelRequests
from codex_proxy.agents.dialects.failures import BAD_ANSWER, CONVERSATION_LOST
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.items import HistoryItem
from codex_proxy.core.turn import Turn, without_content
from codex_proxy.parts.acp.failures import failure_of_error
from codex_proxy.parts.acp.messages import Message, RpcError, ToolsListed, new_session
from codex_proxy.parts.acp.program import Program
from codex_proxy.parts.acp.prompt import Prompt, first_prompt, later_prompt
from codex_proxy.parts.acp.session_setup import Request, plan_setup

NOT_LISTED: Final = Failure(
    FaultKind.UNAVAILABLE,
    "The agent did not connect to the tools of the request in time. Try again.",
    retry_after=5,
)
TITLE: Final = "codex-proxy"
"""The title that this server gives to sessions; otherwise an agent would call its model for one."""


class SessionOpening:
    def __init__(
        self,
        requests: ChannelRequests[int, Message],
        program: Program,
        servers: Sequence[dict[str, Any]],
        *,
        ahead: bool,
    ) -> None:
        """`servers` are the entries of `mcpServers`; with any, the prompt waits for `ToolsListed`. `ahead`: whether
        `session/new` was already sent.
        """
        self.session = ""
        self.model = ""
        """The session's model; empty if the agent does not report it."""
        self._prompt = Prompt([])
        self._requests = requests
        self._program = program
        self._servers = list(servers)
        self._result: list[dict[str, Any]] | Failure | None = None
        self._kind: Literal["new", "ahead", "reopened", "lost", "over"] = "ahead" if ahead else "new"
        """How the session is opened. `lost`: it could not be reopened. `over`: it was set up, or is no
        longer wanted.
        """
        self._tools_listed = not servers
        self._turn = NO_TURN
        self._has_tools = False
        self._setup: deque[tuple[Request, Callable[[RpcError], Failure]]] = deque()
        """The requests before the first prompt, each with the conversion of its error to the turn's failure."""

    @property
    def is_lost(self) -> bool:
        return self._kind == "lost"

    @property
    def awaits_tools(self) -> bool:
        return not self._tools_listed

    def take_result(self) -> list[dict[str, Any]] | Failure | None:
        """Returns, once, the first prompt's content blocks, or why it cannot be sent; None until then."""
        result, self._result = self._result, None
        return result

    def open_new(self, turn: Turn) -> None:
        self._turn, self._has_tools = without_content(turn), bool(turn.tools)
        self._prompt = first_prompt(turn.history, takes_system=self._program.declared.system_prompt)
        if self._kind == "ahead":
            self._requests.expect(self._on_opened)
        else:
            self._requests.send("session/new", self._params(turn, self._prompt.system), self._on_opened)

    def reopen(self, turn: Turn, session: str, new_items: Sequence[HistoryItem]) -> None:
        """Opens a closed session, which has not seen `new_items`."""
        self._turn, self._has_tools = without_content(turn), bool(turn.tools)
        if self._kind == "ahead":
            self._requests.expect(self._close_unused)
        self._kind, self.session = "reopened", session
        method = self._program.reopen_method
        if not method:
            self._fail(CONVERSATION_LOST)
            return
        self._prompt = Prompt(later_prompt(new_items).blocks)
        # Not every agent stores the system prompt.
        system = first_prompt(turn.history, takes_system=self._program.declared.system_prompt).system
        self._requests.send(method, {"sessionId": session, **self._params(turn, system)}, self._on_opened)

    def cancel(self) -> None:
        if self._kind != "lost":
            self._kind = "over"

    def close(self, session: str) -> None:
        if session and self._program.declared.closes:
            self._requests.send("session/close", {"sessionId": session})

    def on_tools_listed(self, message: ToolsListed) -> None:
        if self._tools_listed:
            return
        self._tools_listed = True
        if not message.in_time and self._program.preset.tested_release:
            self._fail(NOT_LISTED)  # a model without the client's tools would do something else
        elif self.session and not self._requests:
            self._continue()

    def _params(self, turn: Turn, system: str) -> dict[str, Any]:
        params = new_session(turn.workdir, self._servers, self._program.preset.session_meta)
        if system:
            params["systemPrompt"] = {"mode": "append", "content": [{"type": "text", "text": system}]}
        return params

    def _close_unused(self, message: Message) -> None:
        """Closes the session that was opened ahead: the turn continues another one."""
        if isinstance(message.session, str):
            self.close(message.session)

    def _on_opened(self, message: Message) -> None:
        if message.error is not None:
            self._fail(failure_of_error(message.error, self._program.preset))
            return
        session = self.session if message.session is None else message.session
        if not isinstance(session, str) or not session:
            self._fail(BAD_ANSWER)
            return
        self.session = session
        if self._kind == "over":
            return
        plan = plan_setup(message.result, session, self._turn, self._program, tools=self._has_tools)
        if isinstance(plan, Failure):
            self._fail(plan)
            return
        self.model = plan.model
        self._setup.extend(plan.requests)
        if titled_by := self._program.preset.titled_by:
            self._requests.send(titled_by, {"sessionId": session, "title": TITLE})
        self._continue()

    def _continue(self) -> None:
        if self._kind == "over":
            return
        if self._setup:
            (method, params), on_refusal = self._setup.popleft()
            self._requests.send(method, params, lambda message: self._on_set_up(message, on_refusal))
        elif self._tools_listed or self._program.preset.lists_late:
            self._kind = "over"
            self._result, self._prompt = self._prompt.blocks, Prompt([])

    def _on_set_up(self, message: Message, on_refusal: Callable[[RpcError], Failure]) -> None:
        if message.error is None:
            self._continue()
        else:
            self._fail(on_refusal(message.error))

    def _fail(self, failure: Failure) -> None:
        if self._kind == "over":
            return
        if self._kind == "reopened":
            self._kind, self.session = "lost", ""
            failure = CONVERSATION_LOST
        else:
            self._kind = "over"
        self._result = failure
