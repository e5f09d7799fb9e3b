"""What has to come out of each recording, read off the recordings by eye, one line for a thread."""

from __future__ import annotations

from typing import NamedTuple

Tokens = tuple[int, int, int, int]
ONE: Tokens = (100, 40, 20, 5)
"""What the recorded model server counted for every call: input, cached, output, reasoning."""
TWO: Tokens = (200, 80, 40, 10)

HELLO = "Hello from the mock model."
COMMAND, PATCH, TOOLS = "The command is done.", "The patch is done.", "Tools are done."
ANSWER = "The answer is 42."
WORDS = "word0 word1 word2 word3 word4 word5 "
TIGHT = '{"city":"Paris"}'
"""As the agent writes arguments, not the model."""
PARIS, ROME, OSLO = '{"city": "Paris"}', '{"city": "Rome"}', '{"city": "Oslo"}'


class Outcome(NamedTuple):
    stop: str
    texts: tuple[str, ...] = ()
    usage: Tokens | None = None
    calls: tuple[str, ...] = ()
    """The exact argument texts."""
    failure: str | None = None


def answer(*texts: str, usage: Tokens | None = ONE) -> Outcome:
    return Outcome("stop", texts, usage)


def calls(*arguments: str, texts: tuple[str, ...] = (), usage: Tokens | None = ONE) -> Outcome:
    return Outcome("tool_calls", texts, usage, arguments)


def fails(kind: str, *texts: str) -> Outcome:
    return Outcome("failed", texts, failure=kind)


def cut(*texts: str, usage: Tokens | None = None) -> Outcome:
    return Outcome("interrupted", texts, usage)


def _all(names: str, outcome: Outcome) -> dict[tuple[str, int], Outcome]:
    return {(name, 0): outcome for name in names.split()}


OUTCOMES: dict[tuple[str, int], Outcome] = {
    # Agent turns: the agent works, then says so.
    **_all("approval_accept approval_acceptForSession approval_answer_bogus", answer(COMMAND, usage=TWO)),
    **_all("approval_answer_empty approval_answer_rpc_error approval_decline", answer(COMMAND, usage=TWO)),
    **_all("approval_never_esc approval_onrequest_accept", answer(COMMAND, usage=TWO)),
    **_all("approval_onrequest_decline approval_onrequest_noesc", answer(COMMAND, usage=TWO)),
    **_all("approval_patch_accept approval_patch_decline approval_patch_never", answer(PATCH, usage=TWO)),
    **_all("approval_cancel", cut(usage=ONE)),
    **_all("patch patch_heredoc patch_streaming_feature", answer(PATCH, usage=TWO)),
    **_all("shell shell_readonly_denied shell_yield", answer(COMMAND, usage=TWO)),
    **_all("plan", answer("The plan is done.", usage=(300, 120, 60, 15))),
    **_all("search", answer("Found it.")),
    **_all("image_gen", answer("Painted.")),
    **_all("elicit_accept elicit_decline elicit_error elicit_never", answer(TOOLS, usage=TWO)),
    **_all("mcp_http_add mcp_http_boom mcp_stdio_add mcp_stdio_boom", answer(TOOLS, usage=TWO)),
    **_all("mcp_stdio_add_startup_race", answer(TOOLS, usage=TWO)),
    **_all("mcp_thread_config mcp_thread_config_nested", answer(TOOLS, usage=TWO)),
    **_all("mcp_dead mcp_dead_stdio", answer(HELLO)),
    **_all("ask request_user_input_answer", answer("Asked.", usage=TWO)),
    **_all("request_user_input_empty request_user_input_error", answer("Asked.", usage=TWO)),
    # Texts.
    **_all("text rate_limits err_garbage_line", answer(HELLO)),
    **_all("no_deltas", answer("All at once.")),
    **_all("empty refusal", answer("")),
    **_all("two_messages two_messages_phase", answer("Message 0 here.", "Message 1 here.")),
    **_all("reasoning reasoning_hidden reasoning_raw raw_events_text", answer(ANSWER)),
    **_all("usage_missing", answer(HELLO, usage=None)),
    **_all("usage_multistep", answer(COMMAND, usage=(3000, 900, 150, 15))),
    **_all("auto_compact", answer(HELLO, usage=TWO)),
    # The client's tools: with raw events the calls of a response are handed out together, with the model's text.
    **_all("raw_events_tool_parallel", calls(PARIS, ROME, texts=("Look.",))),
    **_all(
        "tool_arg_fidelity",
        calls(r'{"z":1.0,"a":12345678901234567890123,"m":{"y":1e3,"b":[1,2.50]},"city":"\u00e9"}'),
    ),
    **_all("direct_lite direct_nolite", calls(PARIS, ROME)),
    ("direct_lite", 1): calls(PARIS, ROME),
    ("direct_nolite", 1): calls(PARIS, ROME),
    **_all("stateless_flow_0.163.0", calls(PARIS, ROME, OSLO, texts=("Let me check.",))),
    ("stateless_flow_0.163.0", 1): answer("It is sunny."),
    **_all("stateless_flow_0.169.0", calls(PARIS, ROME, OSLO, texts=("Let me check.",))),
    ("stateless_flow_0.169.0", 1): answer("It is sunny."),
    # Without them, or where the model calls out of a program, each one is handed out as the agent asks for it.
    **_all("code_mode_dynamic_tool", calls(TIGHT)),
    **_all(
        "resume_dynamic_tools tool_bad_answer tool_empty_args tool_empty_content", calls(TIGHT, usage=None)
    ),
    **_all("tool_late_45s tool_multi_content tool_parallel_swapped tool_rpc_error", calls(TIGHT, usage=None)),
    **_all("tool_success_false tool_never_interrupt", calls(TIGHT, usage=None)),
    **_all("tool_schema_violation", calls('{"x":1}', usage=None)),
    **_all("tool_single", calls(TIGHT, texts=("Let me look.",), usage=None)),
    # Calls that the agent answers by itself.
    **_all("tool_bad_json_args tool_unknown_name", answer(TOOLS, usage=TWO)),
    # Histories and forks.
    **_all("inject_history fork_resume login_api_key", answer(HELLO)),
    ("inject_history", 1): answer(TOOLS),
    ("inject_history", 2): answer(HELLO),
    ("inject_history", 5): fails("rejected_by_provider"),
    ("inject_history", 6): fails("rejected_by_provider"),
    ("fork_resume", 1): answer(HELLO),
    ("fork_resume", 2): fails("rejected_by_provider"),
    ("fork_resume", 3): fails("rejected_by_provider"),
    ("login_api_key", 1): fails("upstream_unauthorized"),
    # Interrupts.
    **_all("interrupt_in_retry_backoff interrupt_no_headers_yet", cut()),
    **_all("interrupt_mid_text", cut(" ".join(f"word{n}" for n in range(20)) + " ")),
    **_all("interrupt_stalled_stream", cut("word0 word1 word2 ")),
    **_all("interrupt_shell_running", cut(usage=ONE)),
    # Faults that the agent got over by itself.
    **_all("err_drop_once", answer(WORDS)),
    **_all("err_drop_at_end_once err_failed_rate_limit err_http_429_once err_http_500_once", answer(HELLO)),
    # Ends that are not faults.
    **_all("err_incomplete_content_filter", Outcome("content_filter", (HELLO,))),
    **_all("err_incomplete_max_tokens", Outcome("length", (HELLO,), ONE)),
    **_all("err_incomplete_max_tokens_item_not_done", Outcome("length", (HELLO,), ONE)),
    # Faults.
    **_all("err_drop_always", fails("upstream_disconnected", "word0 word1 ")),
    **_all("err_failed_server_error_after_text", fails("upstream_disconnected", "word0 word1 word2 ")),
    **_all("err_idle_timeout", fails("upstream_timeout", "word0 word1 ")),
    **_all("err_error_event err_failed_cyber err_failed_unknown", fails("upstream_disconnected")),
    **_all("err_failed_context err_http_400_context", fails("context_length_exceeded")),
    **_all("err_failed_invalid_prompt err_http_400 err_http_400_raw_html", fails("rejected_by_provider")),
    **_all("err_failed_overloaded err_http_503_overloaded", fails("unavailable")),
    **_all("err_failed_quota err_http_429_insufficient_quota", fails("insufficient_quota")),
    **_all("err_http_400_model err_http_404_model", fails("model_not_found")),
    **_all("err_http_401 err_http_403", fails("upstream_unauthorized")),
    **_all("err_http_413", fails("request_too_large")),
    **_all("err_http_429_retry_after", fails("agent_rate_limited")),
    **_all("err_http_429_usage_limit", fails("usage_limit_reached")),
    **_all("err_http_500", fails("upstream_error")),
    **_all("no_auth", fails("agent_not_authenticated")),
    **_all("env_key_missing bad_config", fails("agent_misconfigured")),
}

NO_TURN = frozenset({"model_list"})
"""Recordings without a turn in them."""

COMES_BACK: dict[str, tuple[tuple[str, ...], ...]] = {
    "raw_events_tool_parallel": ((PARIS, ROME),),
    "tool_arg_fidelity": (OUTCOMES["tool_arg_fidelity", 0].calls,),
    "code_mode_dynamic_tool": ((TIGHT,), ('{"city":"Rome"}',)),
    "tool_parallel_swapped": ((TIGHT,), ('{"city":"Rome"}',), ('{"city":"Oslo"}',)),
    "tool_single": ((TIGHT,),),
    "tool_late_45s": ((TIGHT,),),
    "resume_dynamic_tools": ((TIGHT,),),
}
"""What each turn is handed where the client brings the outputs, and the agent goes on to its last words."""
