"""Operations on files: sent before the jobs that name them, and fetched after the jobs that left them."""

from msgspec import Struct

from windlass.model.names import FileName, Sha256
from windlass.model.operations.table import Operation, operation


class FileEntry(Struct, frozen=True, kw_only=True):
    """A file that a job has left."""

    name: str
    size: int
    """Its bytes."""


@operation("PUT", "/files/{hash}", "enqueue", 204, body="data")
class PutFile(Operation[None], frozen=True, kw_only=True):
    """Send a file that jobs of the same tenant then name by its SHA-256. It stays for an hour after its last use."""

    hash: Sha256
    """Its SHA-256, in lower case."""
    data: bytes


@operation("GET", "/jobs/{id}/files", "read")
class GetFiles(Operation[list[FileEntry]], frozen=True, kw_only=True):
    """The files that a job has left, by name."""

    id: str


@operation("GET", "/jobs/{id}/files/{name}", "read")
class GetFile(Operation[bytes], frozen=True, kw_only=True):
    """One of them. Over HTTP the bytes themselves, unless MessagePack or JSON is asked for."""

    id: str
    name: FileName
