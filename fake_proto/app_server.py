"""An agent that speaks the dialect of `codex app-server` (0.163): JSON-RPC without the member `jsonrpc`, with many
threads at once.
"""

from __future__ import annotations

import os

from fake_proto.agent import RpcAgent, RpcError
from fake_proto.app_shapes import CONTEXT_WINDOW, VERSION, rate_limits, raw, thread_started, turn, usage
from fake_proto.app_thread import AppThread, input_items, refusal_of
from fake_proto.app_turn import AppTurn
from fake_proto.script import Script

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fake_proto.faults import Faults
    from fake_proto.loop import Loop
    from fake_proto.settings import Settings
    from fake_proto.wire import Wire

    Params = dict[str, Any]


WITHOUT_PARAMS = frozenset({"account/rateLimits/read"})
"""The methods whose `params` may be null."""


class AppServerAgent(RpcAgent):
    """The agent process, with its client and its threads."""

    def __init__(self, settings: Settings, wire: Wire, loop: Loop, faults: Faults) -> None:
        super().__init__(settings, wire, loop, faults)
        self._threads: dict[str, AppThread] = {}
        self._stored: dict[str, AppThread] = {}
        """Threads that are not ephemeral. They live as long as the process."""
        self._subagents: list[AppThread] = []
        self._client = ""
        self._muted_methods: frozenset[str] = frozenset()
        self._started_threads = 0
        self._started_turns = 0
        self._methods = {
            "thread/start": self._thread_start,
            "thread/resume": self._thread_resume,
            "thread/delete": self._thread_delete,
            "thread/turns/list": self._turns_list,
            "thread/inject_items": self._inject_items,
            "turn/start": self._turn_start,
            "turn/steer": self._turn_steer,
            "turn/interrupt": self._turn_interrupt,
            "thread/unsubscribe": self._unsubscribe,
            "thread/backgroundTerminals/clean": self._clean_terminals,
            "thread/loaded/list": self._loaded_list,
            "model/list": self._model_list,
            "account/read": self._account_read,
            "account/rateLimits/read": self._rate_limits_read,
        }

    def notify(self, method: str, params: Params, faults: Faults | None = None) -> None:
        """Sends a notification, unless the client has opted out of its method. `faults`: as for `send`."""
        if method not in self._muted_methods:
            self.send({"method": method, "params": params, "emittedAtMs": 0}, faults)

    def handle(self, identifier: Any, method: str, params: Any) -> None:
        """Handles a request of the client, with the errors of Codex."""
        if method == "initialize":
            self._initialize(identifier, params or {})
            return
        if not self._client:
            raise RpcError("Not initialized")
        handler = self._methods.get(method)
        if handler is None:
            known = ", ".join(f"`{name}`" for name in ("initialize", *self._methods))
            raise RpcError(f"Invalid request: unknown variant `{method}`, expected one of {known}")
        if params is None and method in WITHOUT_PARAMS:
            params = {}
        if not isinstance(params, dict):
            raise KeyError("params")
        handler(identifier, params)

    def _initialize(self, identifier: Any, params: Params) -> None:
        if self._client:
            raise RpcError("Already initialized")
        client = params["clientInfo"]
        self._client = str(client["name"])
        capabilities = params.get("capabilities") or {}
        self._muted_methods = frozenset(capabilities.get("optOutNotificationMethods") or ())
        agent = f"{self._client}/{VERSION} (fake) unknown ({self._client}; {client.get('version')})"
        home = self.settings.env.get("CODEX_HOME") or "/fake/home"
        self.answer(
            identifier,
            {"userAgent": agent, "codexHome": home, "platformFamily": "unix", "platformOs": "linux"},
        )

    def _thread(self, params: Params) -> AppThread:
        thread = self._threads.get(params["threadId"])
        if thread is None:
            raise RpcError(f"thread not found: {params['threadId']}")
        return thread

    def _thread_start(self, identifier: Any, params: Params) -> None:
        self._started_threads += 1
        model = params.get("model") or self.settings.model("fake-model")
        thread_id = f"thread_{self._started_threads}"
        if not params.get("ephemeral"):  # another process must not take it for one of its own
            thread_id = f"thread_{os.getpid()}_{self._started_threads}"
        thread = AppThread(thread_id, params, model)
        self._threads[thread.identifier] = thread
        if not params.get("ephemeral"):
            self._stored[thread.identifier] = thread
        result = thread_started(thread.identifier, params, model, self._client)
        self.answer(identifier, result)
        self.notify("thread/started", {"thread": result["thread"]})

    def _stored_thread(self, params: Params) -> AppThread:
        thread = self._stored.get(params["threadId"])
        if thread is None:
            raise RpcError(f"no rollout found for thread id {params['threadId']}")
        return thread

    def _thread_resume(self, identifier: Any, params: Params) -> None:
        thread = self._stored_thread(params)
        thread.subscribed, thread.raw = True, False
        thread.model = params.get("model") or thread.model
        self._threads[thread.identifier] = thread
        self.answer(identifier, thread_started(thread.identifier, params, thread.model, self._client))
        total = {
            "total": usage(thread.total),
            "last": usage(thread.total),
            "modelContextWindow": CONTEXT_WINDOW,
        }
        before = {"threadId": thread.identifier, "turnId": "turn_before", "tokenUsage": total}
        self.notify("thread/tokenUsage/updated", before)

    def _turns_list(self, identifier: Any, params: Params) -> None:
        self._stored_thread(params)
        self.answer(identifier, {"data": [], "nextCursor": None})

    def _thread_delete(self, identifier: Any, params: Params) -> None:
        del self._stored[self._stored_thread(params).identifier]
        self.answer(identifier, {})

    def _inject_items(self, identifier: Any, params: Params) -> None:
        thread = self._thread(params)
        refusal = refusal_of(params["items"])
        if refusal is not None:
            raise RpcError(refusal)
        # The real child drops system messages without a word.
        known = len(thread.items)
        kept = [
            {"id": f"injected_{known + index}", **item}
            for index, item in enumerate(params["items"])
            if item.get("role") != "system"
        ]
        thread.items.extend(kept)
        self.answer(identifier, {})
        if thread.raw:
            for item in kept:
                self.notify(
                    "rawResponseItem/completed",
                    {
                        "threadId": thread.identifier,
                        "turnId": "auto-compact-0",
                        "item": raw("auto-compact-0", item),
                    },
                )

    def _turn_start(self, identifier: Any, params: Params) -> None:
        thread = self._thread(params)
        items = input_items(params["input"])
        thread.model = params.get("model") or thread.model
        thread.effort = params.get("effort") or thread.effort
        thread.items.extend(items)
        thread.summary, thread.output_schema = params.get("summary"), params.get("outputSchema")
        request = thread.request()
        script = Script(request, self.settings, self.faults)
        self.responses = max(self.responses, request.highest_response())
        if thread.turn is not None:
            # A second turn/start steers: the running answer is cut and a new one starts in the same turn.
            thread.turn.cut()
            turn_id = thread.turn.identifier
        else:
            self._started_turns += 1
            turn_id = f"turn_{self._started_turns}"
        running = AppTurn(self, thread, turn_id, script, request.outputs())
        thread.turn = running
        result = {"turn": {**turn(turn_id, "inProgress"), "startedAt": None}}
        self.answer(identifier, result, script.faults)
        running.start(params["input"])

    def _turn_steer(self, identifier: Any, params: Params) -> None:
        running, expected = self._thread(params).turn, params["expectedTurnId"]
        if running is None:
            raise RpcError("no active turn to steer")
        if running.identifier != expected:
            raise RpcError(f"expected active turn id `{expected}` but found `{running.identifier}`")
        running.inputs.append((params.get("clientUserMessageId"), params["input"]))
        self.answer(identifier, {"turnId": running.identifier}, running.script.faults)

    # --- subagents ------------------------------------------------------------------------------

    def subagents_of(self, parent: AppThread) -> list[AppThread]:
        """Returns the threads of a thread's subagents, oldest first."""
        return [thread for thread in self._subagents if thread.parent is parent]

    def make_subagent(self, parent: AppThread) -> AppThread:
        """Returns a new subagent of a thread. Nothing is sent about it."""
        self._started_threads += 1
        params = {"experimentalRawEvents": parent.raw}
        child = AppThread(f"thread_{self._started_threads}", params, parent.model, parent)
        self._subagents.append(child)
        self.open_again(child)
        return child

    def open_again(self, child: AppThread) -> None:
        self._threads[child.identifier] = child

    def begin_turn_of(self, child: AppThread, task: str) -> None:
        """Begins a turn of a subagent, as its parent has asked for."""
        child.items.append(
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": task}]}
        )
        script = Script(child.request(), self.settings, self.faults)
        self._started_turns += 1
        child.turn = AppTurn(self, child, f"turn_{self._started_turns}", script, [])
        child.turn.start([{"type": "text", "text": task, "text_elements": []}])

    def close_subagent(self, child: AppThread) -> None:
        """Ends a subagent, with its turn if one goes on."""
        if child.turn is not None:
            child.turn.abort()
            child.turn.end("interrupted")
        self._threads.pop(child.identifier, None)

    def _turn_interrupt(self, identifier: Any, params: Params) -> None:
        thread = self._thread(params)
        if thread.turn is None or params["turnId"] not in ("", thread.turn.identifier):
            raise RpcError("no active turn to interrupt")
        running = thread.turn
        running.abort()
        self.answer(identifier, {})
        running.end("interrupted")

    def _unsubscribe(self, identifier: Any, params: Params) -> None:
        thread = self._threads.get(params["threadId"])
        if thread is None:
            self.answer(identifier, {"status": "notLoaded"})
            return
        thread.subscribed = False
        self.answer(identifier, {"status": "unsubscribed"})
        self.unload_if_left(thread)

    def unload_if_left(self, thread: AppThread) -> None:
        """Closes the thread if the client has unsubscribed and no turn runs."""
        if thread.subscribed or thread.turn is not None:
            return
        del self._threads[thread.identifier]
        closed = {"threadId": thread.identifier, "status": {"type": "notLoaded"}}
        self.notify("thread/status/changed", closed)
        self.notify("thread/closed", {"threadId": thread.identifier})

    def _clean_terminals(self, identifier: Any, params: Params) -> None:
        self._thread(params)
        self.answer(identifier, {})

    def _loaded_list(self, identifier: Any, params: Params) -> None:
        self.answer(identifier, {"data": list(self._threads), "nextCursor": None})

    def _model_list(self, identifier: Any, params: Params) -> None:
        from fake_proto.models import listed_models

        models = listed_models(self.settings, hidden=params.get("includeHidden") is True)
        self.answer(identifier, {"data": models, "nextCursor": None})

    def _rate_limits_read(self, identifier: Any, params: Params) -> None:
        percent = self.settings.text("LIMITS")
        if not percent:
            raise RpcError("chatgpt authentication required to read rate limits")
        self.answer(identifier, {"rateLimits": rate_limits(percent), "rateLimitsByLimitId": None})

    def _account_read(self, identifier: Any, params: Params) -> None:
        signed_in = self.settings.text("ACCOUNT") != "none"
        self.answer(
            identifier,
            {
                "account": {"type": "apiKey"} if signed_in else None,
                "userId": None,
                "requiresOpenaiAuth": True,
                "workspaceRouting": None,
            },
        )
