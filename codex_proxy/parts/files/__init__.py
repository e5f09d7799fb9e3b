"""Files (`/v1/files`), in OpenAI's form and in Anthropic's, for requests that name them by their id."""

from typing import Final

from pydantic import BaseModel, Field

from codex_proxy.parts import Part


class FilesTable(BaseModel, extra="forbid", frozen=True, defer_build=True):
    """`[files]`: how much may be uploaded."""

    max_bytes: int = Field(
        512 << 20,
        gt=0,
        description="largest uploaded file, in bytes; a store in a database or in memory takes 32 MiB at most",
    )
    quota: int = Field(4 << 30, gt=0, description="maximum bytes of all files of a key")


class FilesSettings(BaseModel, defer_build=True):
    files: FilesTable = Field(FilesTable(), description="how much may be uploaded")


PART: Final = Part(
    name="files",
    page="files.md",
    settings="codex_proxy.parts.files:FilesSettings",
    endpoints="codex_proxy.parts.files.endpoints:ENDPOINTS",
    server="codex_proxy.parts.files.server_part:server_part",
)
