"""An agent of codex-proxy for any program that reads a prompt from stdin to its end and prints its answer."""

from codex_proxy.agent_plugin import Part

PART = Part(
    name="oneshot",
    agents={"oneshot": "oneshot_agent.spec:SPEC"},
)
