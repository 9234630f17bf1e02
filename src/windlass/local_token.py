"""The token of this machine: made once, kept in a file that only its owner can read, found by clients on their own."""

import os
import stat
from pathlib import Path

from windlass.model.errors import Invalid
from windlass.model.ports import Randomness

FILE = "token"

LOOPBACK = ("127.0.0.1", "::1", "localhost")


def known_token(folder: Path) -> str | None:
    """The token in a folder, if there is one that we may read."""
    try:
        return (folder / FILE).read_text().strip() or None
    except OSError:
        return None


def check_private(folder: Path) -> None:
    """Refuse a folder in which others may put files in the place of ours."""
    mode = folder.stat().st_mode
    if mode & 0o022 and not mode & stat.S_ISVTX:
        raise Invalid(
            f"{folder} can be written by others (mode {mode & 0o777:04o}): chmod 700 it, or name another with --data",
            at="data",
        )


def local_token(folder: Path, chance: Randomness) -> str:
    """The token in a folder, made if there is none yet."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as fault:
        raise Invalid(f"the folder {folder} cannot be made: {fault.strerror}; name another", at="--data") from None
    check_private(folder)
    path = folder / FILE
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"wl_local_{b''.join(chance.token() for _ in range(4)).hex()}\n")
    except FileExistsError:
        if path.stat().st_mode & 0o077:
            raise Invalid(
                f"{path} can be read by others: chmod 600 it, or delete it to get a new one", at="data"
            ) from None
    return path.read_text().strip()
