"""An assistant of the Agents SDK that works in the current folder with the SDK's own tools. Prints its answer."""

import asyncio
import json
import os
import subprocess
from pathlib import Path

from agents import (
    Agent,
    ApplyPatchTool,
    OpenAIResponsesModel,
    Runner,
    ShellCallOutcome,
    ShellCommandOutput,
    ShellResult,
    ShellTool,
    apply_diff,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

set_tracing_disabled(True)


def run_commands(request):
    output = []
    for command in request.data.action.commands:
        done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
        outcome = ShellCallOutcome(type="exit", exit_code=done.returncode)
        output.append(ShellCommandOutput(stdout=done.stdout, stderr=done.stderr, outcome=outcome))
    return ShellResult(output=output)


class Editor:
    def create_file(self, operation):
        Path(operation.path).write_text(apply_diff("", operation.diff, mode="create"))
        return f"Created {operation.path}."

    def update_file(self, operation):
        file = Path(operation.path)
        file.write_text(apply_diff(file.read_text(), operation.diff))

    def delete_file(self, operation):
        Path(operation.path).unlink()


async def main():
    client = AsyncOpenAI(base_url=os.environ["BASE_URL"], api_key="none", max_retries=0)
    agent = Agent(
        name="assistant",
        model=OpenAIResponsesModel(model=os.environ["MODEL"], openai_client=client),
        tools=[ShellTool(executor=run_commands), ApplyPatchTool(editor=Editor())],
    )
    if os.environ["MODE"] == "streamed":
        result = Runner.run_streamed(agent, "Work.")
        async for _ in result.stream_events():
            pass
    else:
        result = await Runner.run(agent, "Work.")
    print(json.dumps({"answer": result.final_output}))


asyncio.run(main())
