"""Uploaded functions that write on their context's own wires: whatever they say, they speak for themselves alone."""

import asyncio
import base64
import json
import random

import pytest

from tests.support.function_harness import LANGUAGES, Heard, bench, handler, jobs, results
from windlass.model.job import Reason

WRITES = {
    "python": "import base64, os\ndef run(p):\n    fd, data = p.split()\n"
    "    os.write(int(fd), base64.b64decode(data))\n    return 'own'",
    "node": "function run(p) { const [fd, data] = p.split(' '); "
    "require('node:fs').writeSync(+fd, Buffer.from(data, 'base64')); return 'own' }",
    "php": "function run($p) { [$fd, $data] = explode(' ', $p); $to = fopen(\"php://fd/$fd\", 'w'); "
    "fwrite($to, base64_decode($data)); return 'own'; }",
    "sh": "read fd data; printf %s $data | base64 -d >&$fd || exit 9",
}
"""In each language: writes what its payload says to a descriptor, then returns as if nothing had been."""

WORDS = (
    b"done ", b"end", b"end broken", b"load 1 {}", b"job ", b"1 ", b"2 ", b"200 ", b"500 ", b"json ", b"error ", b"{}",
    b"\n", b"\x1e", b"J: work|x\n", b"#J: ", b"|", b"\x00\xff", b"x" * 5000, b'"\xff"', b"text64 !!", b"-1 ", b"9" * 30,
)  # fmt: skip


def said(fd: int, data: bytes) -> bytes:
    return b"%d %b" % (fd, base64.b64encode(data) or b"Cg==")


@pytest.mark.parametrize("lang", LANGUAGES)
async def test_whatever_is_written_each_job_has_one_end_and_the_next_context_works(lang: str) -> None:
    chance = random.Random(lang)
    payloads = [
        said(chance.choice((1, 2, 4)), b"".join(chance.choices(WORDS, k=chance.randrange(1, 40)))) for _ in range(12)
    ]
    async with bench() as shop:
        heard = await shop.run(handler(lang, WRITES[lang], batch=4), *payloads)
        assert len(heard.outcomes) == len(payloads)
        assert all(not one.jobs for one in heard.outcomes.values() if one.code != 200)
        assert {task for one in heard.outcomes.values() for task, _ in one.jobs} <= {"work"}
        well = await shop.run(handler(lang, WRITES[lang], task="after"), said(2, b"fine\n"))
        assert well.codes == [200]


HALF = [b"done 1 200 js", b"done", b"d", b"end", b"done 1 200 json 1"]


@pytest.mark.parametrize("lang", ["python", "node", "php"])
@pytest.mark.parametrize("half", HALF, ids=range(len(HALF)))
async def test_half_a_line_makes_nonsense_of_the_answer_after_it(lang: str, half: bytes) -> None:
    async with bench() as shop:
        heard = await shop.run(handler(lang, WRITES[lang]), said(4, half), said(2, b"x"))
        assert (heard.outcomes["0000"].code, heard.outcomes["0000"].reason) == (500, Reason.CRASHED)
        assert heard.outcomes["0001"].code == 200, "it had not begun, and ran in a context of its own"


async def test_a_script_has_no_wire_to_write_on() -> None:
    async with bench() as shop:
        heard = await shop.run(handler("sh", WRITES["sh"]), said(4, b"done 1 200 json 1\n"), said(3, b"x"))
        assert heard.codes == [500, 500]
        assert {one.type for one in heard.outcomes.values()} == {"Exit"}


@pytest.mark.parametrize("lang", ["python", "node", "php"])
async def test_answers_that_are_forged_reach_no_other_context(lang: str) -> None:
    """Not that of another tenant, and not that of another handler of the same one."""
    forged = b"".join(b'done %d 200 json "forged"\n' % number for number in range(1, 40))
    honest = [said(2, b"%d" % number) for number in range(20)]
    async with bench() as shop:
        others = [
            handler(lang, WRITES[lang], task="other"),
            handler(lang, WRITES[lang], task="work", tenant="another"),
        ]
        heard = [Heard() for _ in others]
        async with asyncio.TaskGroup() as group:
            for one, ear in zip(others, heard, strict=True):
                group.create_task(shop.functions.run(one, jobs(*honest, tenant=one.tenant), ear))
            forging = group.create_task(shop.run(handler(lang, WRITES[lang]), said(4, forged)))
        for ear in heard:
            assert results(ear) == ["own"] * 20
        assert len(forging.result().outcomes) == 1


@pytest.mark.parametrize("lang", ["python", "node", "php"])
async def test_a_context_for_one_job_speaks_for_no_other(lang: str) -> None:
    """Jobs that share a context share its code, which may say what it likes of those after it. These do not share."""
    forged = b"".join(b'done %d 200 json "forged"\n' % number for number in range(1, 40))
    async with bench() as shop:
        alone = handler(lang, WRITES[lang], batch=1, recycle=1)
        assert (await shop.run(alone, said(4, forged))).one.id == "0000"
        assert results(await shop.run(alone, said(2, b"x"))) == ["own"]


async def test_a_php_function_may_close_its_outputs() -> None:
    async with bench() as shop:
        body = 'function run($p) { echo "J: a|b\\n"; fclose(STDOUT); fclose(STDERR); return $p; }'
        heard = await shop.run(handler("php", body), b"x", b"y")
        assert heard.outcomes["0000"].code == 200
        assert json.loads(heard.outcomes["0000"].result or b"") == "x"
        assert heard.outcomes["0000"].jobs == (("a", "b"),)
