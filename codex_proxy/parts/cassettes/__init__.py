"""Cassettes: turns that were recorded into files, and are replayed from them, also by the pytest plugin."""

from typing import Final

from codex_proxy.parts import Flag, Part

PART: Final = Part(
    name="cassettes",
    page="cassettes.md",
    settings="codex_proxy.parts.cassettes.settings:CassettesSettings",
    flags=(
        Flag("record", "cassettes.record", "FOLDER", serve_only=True),
        Flag("replay", "cassettes.replay", "FOLDER", serve_only=True),
        Flag("match", "cassettes.match", "NAMES", serve_only=True),
        Flag("pace", "cassettes.pace", "[none|recorded|FACTOR]", serve_only=True),
        Flag("scrub", "cassettes.scrub", "REGEX", serve_only=True),
        Flag(
            "record_missing",
            "cassettes.record",
            value_of="replay",
            serve_only=True,
            help="Let the agent answer what no cassette does, and record it in the folder of --replay.",
        ),
    ),
    needs={
        "cassettes.match": ("cassettes.replay", "cassettes.record"),
        "cassettes.pace": ("cassettes.replay",),
        "cassettes.scrub": ("cassettes.record",),
        "max_tool_call_iterations": ("cassettes.replay",),
    },
    commands="codex_proxy.parts.cassettes.commands:commands",
    chosen_agent="codex_proxy.parts.cassettes.settings:chosen_agent",
    checks="codex_proxy.parts.cassettes.server_part:checks",
    server="codex_proxy.parts.cassettes.server_part:server_part",
)
