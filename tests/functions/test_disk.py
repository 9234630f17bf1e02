"""What uploaded functions may write: the bytes and the number of files of one context are bounded, on every tier."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.function_harness import Bench, bench, handler, results
from tests.support.patience import PATIENCE
from windlass.model.job import Reason
from windlass.worker.functions.sandbox.monitor import DEEPEST, HIDDEN, part_taken

TIERS = ("limits", "confined", "isolated")
MIB = 1 << 20
TOO_MUCH = "wrote more to its folder than it is allowed"

BIG = {
    "python": """
import itertools
def run(p):
    for at in itertools.count() if p == 'bad' else ():
        open(f'file{at}', 'wb').write(b'x' * 2**20)
    return 'fine'
""",
    "node": """
const fs = require('fs');
function run(p) {
  for (let at = 0; p === 'bad'; at++) fs.writeFileSync(`file${at}`, Buffer.alloc(2 ** 20, 1));
  return 'fine';
}
""",
    "php": """
function run($p) {
  for ($at = 0; $p === 'bad'; $at++) @file_put_contents("file$at", str_repeat('x', 2 ** 20));
  return 'fine';
}
""",
    "sh": """
p=$(cat); at=0
while [ $p = bad ]; do at=$((at + 1)); head -c 1048576 /dev/zero > file$at; done; printf '"fine"'
""",
}
"""Files of a megabyte each, without end."""

MANY = """
import itertools, os
def run(p):
    for at in itertools.count() if p == 'bad' else ():
        os.makedirs(f'folder{at % 7}/deeper', exist_ok=True)
        os.close(os.open(f'folder{at % 7}/deeper/{at}', os.O_CREAT))
"""

UNSEEN = """
import os
def run(p):
    kept = []
    while p == 'bad':
        kept.append(open('hidden', 'wb', buffering=0))
        os.unlink('hidden')
        kept[-1].write(b'x' * 2**20)
        del kept[100:]
"""
"""Deleted at once, and kept open."""


@pytest.fixture
def place() -> Iterator[Path]:
    """Not below pytest's own folder, which each session that starts closes to other users."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def left_over(place: Path) -> list[Path]:
    return list(place.rglob("file*"))


@pytest.mark.parametrize(
    ("tier", "lang"), [*((tier, "python") for tier in TIERS), *(("confined", lang) for lang in ("node", "php", "sh"))]
)
async def test_a_function_that_fills_the_disk_is_ended_and_what_it_wrote_is_gone(
    tier: str, lang: str, place: Path
) -> None:
    async with bench(tier=tier, folder=str(place), disk=40 * MIB) as shop:
        heard = await shop.run(handler(lang, BIG[lang]), b"good", b"bad", b"good")
        bad = heard.outcomes["0001"]
        assert (bad.code, bad.reason, bad.type, bad.message) == (500, Reason.DISK, "Disk", TOO_MUCH)
        assert heard.codes == [200, 500, 200], "the others of its batch run"
        assert heard.pids["0002"] != heard.pids["0001"]
    assert not left_over(place)


@pytest.mark.parametrize("tier", TIERS)
async def test_a_function_that_makes_files_without_end_is_ended(tier: str, place: Path) -> None:
    async with bench(tier=tier, folder=str(place), disk_files=2000) as shop:
        heard = await shop.run(handler("python", MANY), b"bad", b"good")
        assert heard.outcomes["0000"].reason is Reason.DISK
        assert heard.codes == [500, 200]


@pytest.mark.parametrize("tier", TIERS)
async def test_files_that_are_deleted_and_still_open_count_too(tier: str, place: Path) -> None:
    async with bench(tier=tier, folder=str(place), disk=40 * MIB) as shop:
        assert (await shop.run(handler("python", UNSEEN), b"bad")).one.reason is Reason.DISK


async def test_a_handler_may_ask_for_less_but_not_for_more() -> None:
    writes = "def run(p):\n    import time\n    open('f', 'wb').write(b'x' * 2**20 * int(p))\n    time.sleep(1.2)"
    async with bench(disk=20 * MIB, file_size=1 << 30) as shop:
        assert (await shop.run(handler("python", writes, disk=2 * MIB), b"1")).codes == [200]
        assert (await shop.run(handler("python", writes, disk=1 << 40), b"19")).codes == [200]
        refused = (await shop.run(handler("python", writes, disk=1 << 40), b"21")).one
        # One file is never larger than all may be together. The write fails, or the look at the disk comes first.
        assert refused.reason is Reason.DISK or "File too large" in refused.message


LEAVES = """
import os
def run(p):
    open(f'left{p}', 'wb').write(b'x' * 2**20)
    return len(os.listdir('.')) - 1
"""


async def until_half_full(shop: Bench) -> None:
    """The context that rests, or has just worked, gets no other batch."""
    async with asyncio.timeout(PATIENCE):
        while not all(context.broken for context in shop.functions._idle):  # noqa: ASYNC110 - nobody gives a sign
            await asyncio.sleep(0.01)


async def test_a_context_that_its_jobs_have_half_filled_makes_way_before_one_has_to_pay_for_it() -> None:
    async with bench(disk=5 * MIB) as shop:
        kept = handler("python", LEAVES, batch=1)
        found = [results(await shop.run(kept, b"%d" % at))[0] for at in range(3)]
        await until_half_full(shop)
        found += [results(await shop.run(kept, b"%d" % at))[0] for at in range(2)]
    assert found == [1, 2, 3, 1, 2]


async def test_a_context_that_is_found_half_full_while_it_rests_gets_no_other_batch() -> None:
    async with bench(disk=5 * MIB) as shop:
        quick = handler("python", LEAVES.replace("2**20", "3 * 2**20"))
        first = await shop.run(quick, b"1")
        await until_half_full(shop)
        second = await shop.run(quick, b"2")
    assert first.codes + second.codes == [200, 200]
    assert first.pids["0000"] != second.pids["0000"]


async def test_what_lies_in_a_warm_context_within_bounds_is_left_alone() -> None:
    async with bench() as shop:
        kept = handler("python", LEAVES)
        assert results(await shop.run(kept, b"1", b"2")) == [1, 2]
        assert results(await shop.run(kept, b"3")) == [3]


# How a folder is weighed


def weighed(folder: Path, disk: int = MIB, files: int = 100) -> float:
    return part_taken(str(folder), [], disk, files)


def test_a_folder_is_weighed_by_what_it_takes_and_by_what_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "deep" / "deeper").mkdir(parents=True)
    (tmp_path / "deep" / "deeper" / "half").write_bytes(b"x" * (MIB // 2))
    assert 0.5 <= weighed(tmp_path) < 0.6
    os.link(tmp_path / "deep" / "deeper" / "half", tmp_path / "again")
    assert weighed(tmp_path) < 0.6, "two names of one file"
    assert weighed(tmp_path, files=8) >= 0.5, "which are two entries"
    with (tmp_path / "sparse").open("wb") as sparse:
        sparse.truncate(1 << 40)
    assert weighed(tmp_path) < 0.6


def test_no_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "to the root").symlink_to("/")
    (tmp_path / "to itself").symlink_to(tmp_path)
    assert weighed(tmp_path) == 0.02


def test_a_folder_that_cannot_be_looked_into_counts_as_full(tmp_path: Path) -> None:
    top = tmp_path
    for _ in range(DEEPEST):
        top /= "d"
    top.mkdir(parents=True)
    assert weighed(tmp_path, files=1000) < 1
    (top / "d").mkdir()
    assert weighed(tmp_path, files=1000) == HIDDEN


def test_no_more_is_looked_at_than_it_takes_to_see_that_it_is_too_much(tmp_path: Path) -> None:
    for at in range(50):
        (tmp_path / str(at)).touch()
    assert weighed(tmp_path, files=10) == 1.1
