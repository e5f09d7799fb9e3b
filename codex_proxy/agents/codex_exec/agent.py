"""The agent `codex-exec`: a child for each turn, with files for images and schema in a temporary folder, which is
removed with the turn, or at the next start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

import msgspec

from codex_proxy.agents.codex.confined_reads import ConfinedReads
from codex_proxy.agents.codex_exec.launch import MAX_PROMPT
from codex_proxy.agents.dialects.transcript import prompt_of
from codex_proxy.agents.processes.child_per_turn import ChildPerTurnAgent, ChildSpec
from codex_proxy.agents.processes.session import AgentSession
from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.core.items import ImagePart
from codex_proxy.core.media import decode_base64
from codex_proxy.core.turn import Turn
from codex_proxy.files.private import replace_file
from codex_proxy.files.temporary import temporary_folder
from codex_proxy.process.child import Command

ENDINGS: Mapping[str, str] = {
    "image/png": ".png",
    "image/jpeg": ".jpg",
    "image/gif": ".gif",
    "image/webp": ".webp",
}

TOO_LONG = Failure(
    FaultKind.CONTEXT_LENGTH_EXCEEDED,
    f"The conversation is longer than {MAX_PROMPT} characters, the most that `codex exec` "
    "accepts. Shorten it, or ask the operator to install a release of Codex with an app-server.",
)


class TurnFiles(msgspec.Struct, frozen=True):
    images: tuple[str, ...] = ()
    schema: str | None = None


class CodexExecAgent(ChildPerTurnAgent):
    def __init__(
        self,
        spec: ChildSpec,
        command: Callable[[Turn, TurnFiles], Command],
        state: str,
        reads: ConfinedReads,
    ) -> None:
        """`command` returns the command of a turn with its files, which are below `state`."""
        super().__init__(spec)
        self._reads = reads
        self._command = command
        self._state = state
        self._folders: dict[AgentSession, ExitStack] = {}

    async def open(self, turn: Turn) -> AgentSession:
        turn = await self._reads.limit(turn)
        prompt, images = prompt_of(turn.history)
        if len(prompt) > MAX_PROMPT:
            raise Fault(TOO_LONG)
        with ExitStack() as folder:
            files = TurnFiles()
            if images or turn.output_schema is not None:
                path = Path(folder.enter_context(temporary_folder("turn", self._state)).path)
                files = await asyncio.to_thread(_write_files, path, images, turn)
            session = await self.start_child(turn, self._command(turn, files))
            self._folders[session] = folder.pop_all()
        return session

    async def release(self, session: AgentSession, *, finished: bool) -> None:
        try:
            await super().release(session, finished=finished)
        finally:
            folder = self._folders.pop(session, None)
            if folder is not None:
                folder.close()

    async def close(self) -> None:
        self._reads.close()
        await super().close()


def _write_files(folder: Path, images: list[ImagePart], turn: Turn) -> TurnFiles:
    paths = []
    for number, image in enumerate(images, 1):
        head, _, data = image.url.partition(",")
        media_type = head.removeprefix("data:").partition(";")[0]
        path = folder / f"image-{number}{ENDINGS.get(media_type, '')}"
        with replace_file(path) as file:
            file.write(decode_base64(data))
        paths.append(str(path))
    if turn.output_schema is None:
        return TurnFiles(tuple(paths))
    schema = folder / "schema.json"
    with replace_file(schema) as file:
        file.write(bytes(turn.output_schema))
    return TurnFiles(tuple(paths), str(schema))
