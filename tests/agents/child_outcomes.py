"""What has to come out of the recordings of a child that serves one turn: how it ends, the fault, and the messages in
order (a retry repeats its text). It was read off the recordings and off what caused them: the prompt names the scenario
of the model server.
"""

from __future__ import annotations

from typing import TypeAlias

from codex_proxy.core.faults import FaultKind as K

Outcomes: TypeAlias = dict[str, tuple[str, K | None, list[str]]]

HELLO = "Hello from the mock model."
WORDS = "word0 word1 "


def answer(names: str, *texts: str, stop: str = "stop") -> Outcomes:
    """The recordings with these names end so, with these messages."""
    return {name: (stop, None, list(texts)) for name in names.split()}


def fails(names: str, fault: K, *texts: str) -> Outcomes:
    return {name: ("failed", fault, list(texts)) for name in names.split()}


def both(outcomes: Outcomes) -> Outcomes:
    """The outcomes of scenarios that both releases were recorded with."""
    return {f"{name}_{release}": end for name, end in outcomes.items() for release in ("0.163.0", "0.169.0")}


OF_ALL: Outcomes = {
    **answer("approval_never_esc shell shell_readonly_denied usage_multistep", "The command is done."),
    **answer("ask", "Asked."),
    **answer("empty", ""),
    **answer("err_drop_at_end_once", HELLO, HELLO),
    **answer("err_failed_rate_limit err_garbage_line err_http_429_once err_http_500_once mcp_dead", HELLO),
    **answer("rate_limits text usage_missing", HELLO),
    **answer("image_gen", "Painted."),
    **answer("mcp_stdio_add mcp_stdio_boom", "Tools are done."),
    **answer("no_deltas", "All at once."),
    **answer("patch", "The patch is done."),
    **answer("plan", "The plan is done."),
    **answer("reasoning reasoning_hidden reasoning_raw", "The answer is 42."),
    **answer("refusal"),
    **answer("search", "Found it."),
    **answer("two_messages two_messages_phase", "Message 0 here.", "Message 1 here."),
    **fails("bad_config env_key_missing", K.AGENT_MISCONFIGURED),
    **fails("err_error_event err_failed_cyber err_failed_unknown", K.UPSTREAM_DISCONNECTED),
    **fails("err_failed_context err_http_400_context", K.CONTEXT_LENGTH_EXCEEDED),
    **fails("err_failed_invalid_prompt err_http_400 err_http_400_raw_html", K.REJECTED_BY_PROVIDER),
    **fails("err_failed_quota", K.INSUFFICIENT_QUOTA),
    **fails("err_http_400_model err_http_404_model", K.MODEL_NOT_FOUND),
    **fails("err_http_401 err_http_403", K.UPSTREAM_UNAUTHORIZED),
    **fails("err_http_413", K.REQUEST_TOO_LARGE),
    **fails("err_http_429_retry_after", K.AGENT_RATE_LIMITED),
    **fails("err_http_429_usage_limit", K.USAGE_LIMIT_REACHED),
    **fails("err_http_500", K.UPSTREAM_ERROR),
    **fails("err_http_503_overloaded", K.UNAVAILABLE),
}
"""The outcomes of scenarios of the model server."""
