"""The folder of a server, and the token in it."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.stores import SeededChance
from windlass.local_token import local_token
from windlass.model.errors import Invalid


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o707, 0o722])
def test_a_folder_that_others_may_write_to_is_refused(mode: int, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(Invalid, match=rf"can be written by others \(mode {mode:04o}\): chmod 700 it"):
        local_token(folder, SeededChance(1))
    folder.chmod(0o755)
    assert local_token(folder, SeededChance(1))


def test_a_folder_whose_files_only_their_owners_can_replace_is_fine(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    assert local_token(tmp_path, SeededChance(1))


def test_a_server_does_not_start_in_a_folder_that_others_may_write_to(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(0o777)
    place = ["--data", str(tmp_path / "data"), "--store", str(tmp_path / "jobs.db"), "--port", "0"]
    command = [sys.executable, "-m", "windlass", "serve", *place]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, "chmod 700" in ended.stderr) == (2, True), ended.stderr
