"""Uploaded functions in each language: what they get, what they answer, how they end."""

import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from tests.support.function_harness import LANGUAGES, WITH_VALUES, Bench, bench, handler
from windlass.model.handler import MOST_SCRIPT
from windlass.model.job import JSON, MSGPACK, TEXT, Reason

EVERY = pytest.mark.parametrize("lang", LANGUAGES)
VALUED = pytest.mark.parametrize("lang", WITH_VALUES)

BYTES = "application/octet-stream"


@pytest.fixture
async def shop() -> AsyncIterator[Bench]:
    async with bench() as found:
        yield found


ECHO = {
    "python": "def run(payload):\n    return {'got': payload}",
    "node": "function run(payload) { return {got: payload} }",
    "php": "function run($payload) { return ['got' => $payload]; }",
}
VALUE = {"scene": 7, "näme": "a\nb\u2028", "deep": [1.5, None, True, {"x": []}]}


@VALUED
async def test_a_function_gets_the_value_of_its_payload_and_answers_with_one(shop: Bench, lang: str) -> None:
    as_json = await shop.run(handler(lang, ECHO[lang]), json.dumps(VALUE, indent=1).encode(), content_type=JSON)
    packed = await shop.run(handler(lang, ECHO[lang]), msgspec.msgpack.encode(VALUE), content_type=MSGPACK)
    for heard in (as_json, packed):
        assert (heard.one.code, heard.one.content_type) == (200, JSON)
        assert json.loads(heard.one.result or b"") == {"got": VALUE}


@VALUED
@pytest.mark.parametrize("text", ["a line", "", "two\nlines\n", " äöü | \\ \" ' $x \r\u2028 "])
async def test_a_function_gets_text_as_it_is(shop: Bench, lang: str, text: str) -> None:
    heard = await shop.run(handler(lang, ECHO[lang]), text.encode(), content_type=TEXT)
    assert json.loads(heard.one.result or b"") == {"got": text}


SIZES = {
    "python": "def run(payload):\n    return payload + bytes([0, 255])",
    "node": "function run(payload) { return Buffer.concat([payload, Buffer.from([0, 255])]) }",
    "php": 'function run($payload) { return $payload . "\\x00\\xff"; }',
    "sh": "cat; printf '\\000\\377'",
}


@EVERY
async def test_bytes_go_in_and_come_out_unchanged(shop: Bench, lang: str) -> None:
    every = bytes(range(256)) * 100
    heard = await shop.run(handler(lang, SIZES[lang]), every, content_type=BYTES)
    assert (heard.one.result, heard.one.content_type) == (every + b"\x00\xff", BYTES)


async def test_a_script_gets_its_payload_on_stdin_and_what_it_prints_is_the_result(shop: Bench) -> None:
    heard = await shop.run(handler("sh", "tr a-z A-Z"), b"one", b"two\nlines", b"")
    assert [one.result for one in heard.outcomes.values()] == [b"ONE\n", b"TWO\nLINES\n", b""]
    assert {one.content_type for one in heard.outcomes.values()} == {TEXT}
    packed = await shop.run(handler("sh", "cat"), msgspec.msgpack.encode({"a": [1]}), content_type=MSGPACK)
    assert packed.one.result == b'{"a":[1]}\n'


async def test_a_node_function_may_be_async_and_import_modules(shop: Bench) -> None:
    body = """
    const wait = (ms) => new Promise((done) => setTimeout(done, ms));
    async function run(payload) { await wait(5); return require('node:path').basename(payload) }
    """
    assert (await shop.value("node", body, b'"/a/b"')).result == b'"b"'


async def test_a_python_function_may_be_async_and_keeps_its_loop(shop: Bench) -> None:
    body = """
import asyncio
loops = set()
async def run(payload):
    await asyncio.sleep(0.001)
    loops.add(id(asyncio.get_running_loop()))
    if payload == "bad":
        raise Fail("no " + payload)
    return len(loops)
"""
    heard = await shop.run(handler("python", body), b"one", b"bad", b"two")
    assert [one.result for one in heard.outcomes.values()] == [b"1", None, b"1"]
    assert (heard.outcomes["0001"].code, heard.outcomes["0001"].message) == (400, "no bad")


async def test_what_is_thrown_in_node_need_not_be_an_error(shop: Bench) -> None:
    async def said(thrown: str) -> tuple[int, str]:
        outcome = await shop.value("node", f"function run(payload) {{ throw {thrown} }}")
        return outcome.code, outcome.message

    assert await said("{ code: 404, message: 'no such scene' }") == (404, "no such scene")
    assert await said("{ scene: 7 }") == (500, "{ scene: 7 }")
    assert await said("'oops'") == (500, "oops")


async def test_php_tells_of_a_fault_once(shop: Bench) -> None:
    heard = await shop.run(handler("php", "function run($payload) { return $missing; }"), b"")
    assert heard.output["0000", "stderr"].count(b"Undefined variable $missing") == 1


async def test_many_short_lines_take_a_script_no_more_memory_than_long_ones(shop: Bench) -> None:
    """Each of them would take forty bytes beside its own."""
    lines = handler("sh", "yes | head -c 3000000", memory=64 << 20)
    assert (await shop.run(lines, b"")).one.result == b"y\n" * 1_500_000


async def test_a_script_may_be_as_long_as_it_is_taken_in(shop: Bench) -> None:
    body = "cat #".ljust(MOST_SCRIPT, "#")
    assert (await shop.run(handler("sh", body, before="x=1 #".ljust(MOST_SCRIPT, "#")), b"one")).one.result == b"one\n"


async def test_a_file_of_php_may_begin_with_its_tag(shop: Bench) -> None:
    body = "<?php\nfunction run($payload) { return $payload . SEEN; }"
    assert (await shop.value("php", body, b'"a"', before="\n<?php const SEEN = 1;")).result == b'"a1"'


WRONG_AFTER = {
    "python": ["raise Retry('x', after='1m')", "raise Retry('x', after=float('nan'))", "raise Retry('x', after=-1)"],
    "node": ["throw new Retry('x', {after: '1m'})", "throw new Retry('x', {after: Infinity})"],
    "php": ["throw new Retry('x', after: '1m')"],
}


@pytest.mark.parametrize(("lang", "said"), [(lang, said) for lang, all_ in WRONG_AFTER.items() for said in all_])
async def test_a_wrong_time_for_another_run_says_so(shop: Bench, lang: str, said: str) -> None:
    outcome = await shop.value(lang, raising(lang, said), b"0")
    assert (outcome.code, outcome.type, "after" in outcome.message) == (500, "TypeError", True)


@pytest.mark.parametrize(
    ("lang", "said"),
    [
        ("python", "fault = ValueError('x'); fault.after = float('inf'); raise fault"),
        ("python", "fault = ValueError('x'); fault.after = '1m'; raise fault"),
        ("php", "throw new Retry('x', after: INF)"),
    ],
)
async def test_an_error_with_a_time_that_means_nothing_is_still_reported(shop: Bench, lang: str, said: str) -> None:
    outcome = await shop.value(lang, raising(lang, said), b"0")
    assert (outcome.message, outcome.delay, outcome.reason) == ("x", None, None)


def raising(lang: str, said: str) -> str:
    forms = {"python": "def run(p):\n    {}", "node": "function run(p) {{ {} }}", "php": "function run($p) {{ {}; }}"}
    return forms[lang].format(said)


ENDINGS = {
    "python": {
        "retry": "raise Retry('later', after=7)",
        "fail": "raise Fail('never')",
        "coded": "class Odd(Exception):\n        code = 422\n    raise Odd('odd')",
        "wild": "class Odd(Exception):\n        code = 200\n    raise Odd('odd')",
        "error": "return 1 / 0",
        "exit": "raise SystemExit(3)",
    },
    "node": {
        "retry": "throw new Retry('later', {after: 7})",
        "fail": "throw new Fail('never')",
        "coded": "throw Object.assign(new Error('odd'), {code: 422})",
        "wild": "throw Object.assign(new Error('odd'), {code: 'ENOENT'})",
        "error": "return missing.thing",
        "exit": "throw 'just text'",
    },
    "php": {
        "retry": "throw new Retry('later', 7);",
        "fail": "throw new Fail('never');",
        "coded": "throw new Exception('odd', 422);",
        "wild": "throw new Exception('odd', 3);",
        "error": "return intdiv(1, 0);",
        "exit": "return strlen([]);",
    },
}
FRAMES = {
    "python": "def run(payload):\n    {}",
    "node": "async function run(payload) {{ {} }}",
    "php": "function run($payload) {{ {} }}",
}


@VALUED
@pytest.mark.parametrize(
    ("how", "code"), [("retry", 100), ("fail", 400), ("coded", 422), ("wild", 500), ("error", 500), ("exit", 500)]
)
async def test_what_a_function_throws_says_how_it_ended(shop: Bench, lang: str, how: str, code: int) -> None:
    outcome = await shop.value(lang, FRAMES[lang].format(ENDINGS[lang][how]))
    assert (outcome.code, outcome.reason, outcome.result, outcome.unrun) == (code, None, None, False)
    assert outcome.delay == (7 if how == "retry" else None)
    expected = {"retry": "later", "fail": "never", "coded": "odd", "wild": "odd"}
    assert expected.get(how, "") in outcome.message


@VALUED
async def test_an_error_has_a_type_a_message_and_a_trace_of_the_functions_own(shop: Bench, lang: str) -> None:
    outcome = await shop.value(lang, FRAMES[lang].format(ENDINGS[lang]["error"]))
    kinds = {"python": "ZeroDivisionError", "node": "ReferenceError", "php": "DivisionByZeroError"}
    messages = {"python": "division by zero", "node": "missing is not defined", "php": "Division by zero"}
    assert (outcome.type, outcome.message) == (kinds[lang], messages[lang])
    assert outcome.type in outcome.traceback
    assert {"python": "<work:body>", "node": "<work:body>", "php": "source:1"}[lang] in outcome.traceback
    assert "windlass" not in outcome.traceback


@pytest.mark.parametrize(
    ("status", "code"),
    [(0, 200), (75, 100), (64, 464), (74, 474), (76, 476), (78, 478), (1, 500), (63, 500), (79, 500)],
)
async def test_the_status_of_a_script_is_its_outcome(shop: Bench, status: int, code: int) -> None:
    outcome = (await shop.run(handler("sh", f"echo out; exit {status}"), b"")).one
    assert outcome.code == code
    assert outcome.message == ("" if code == 200 else f"the script ended with {status}")


PRINTS = {
    "python": "def run(payload):\n    print(payload, end='')\n    import sys\n    print('to err', file=sys.stderr)",
    "node": "function run(payload) { process.stdout.write(payload); console.error('to err') }",
    "php": 'function run($payload) { echo $payload; fwrite(STDERR, "to err\\n"); }',
    "sh": "cat; echo to err >&2",
}


@EVERY
async def test_lines_that_begin_with_j_are_new_jobs(shop: Bench, lang: str) -> None:
    said = b"first\nJ: mail|a|b \nnot J: mail|x\n#J: mail.next|\nJ: no bar\nJ: bad/name|x\nJ:mail|x\nJ: last|no end"
    heard = await shop.run(handler(lang, PRINTS[lang]), said, b"J: other|2", b"nothing")
    kept = b"first\nnot J: mail|x\nJ: no bar\nJ: bad/name|x\nJ:mail|x\n"
    assert [one.jobs for one in heard.outcomes.values()] == [
        (("mail", "a|b "), ("mail.next", ""), ("last", "no end")),
        (("other", "2"),),
        (),
    ]
    if lang == "sh":
        assert heard.outcomes["0000"].result == b"first\nnot J: mail|x\nJ:mail|x\n"
    else:
        assert heard.output["0000", "stdout"] == kept
        assert heard.output["0002", "stdout"] == b"nothing"
    assert [heard.output[id, "stderr"] for id in heard.outcomes] == [b"to err\n"] * 3


@VALUED
async def test_a_job_that_does_not_succeed_makes_no_jobs(shop: Bench, lang: str) -> None:
    says = {"python": "print('J: a|b'); raise Fail()", "node": "console.log('J: a|b'); throw new Fail()"}
    says["php"] = 'echo "J: a|b\\n"; throw new Fail();'
    outcome = await shop.value(lang, FRAMES[lang].format(says[lang]))
    assert (outcome.code, outcome.jobs) == (400, ())


async def test_a_job_may_not_ask_for_any_number_of_jobs(shop: Bench) -> None:
    outcome = await shop.value("python", "def run(n):\n    print('J: a|b\\n' * n)", b"101")
    assert (outcome.code, outcome.reason, outcome.jobs) == (500, Reason.OUTPUT, ())
    assert len((await shop.value("python", "def run(n):\n    print('J: a|b\\n' * n)", b"100")).jobs) == 100


LIFE: dict[str, dict[str, Any]] = {
    "python": {
        "before": "import itertools\nbatches = 0\nended = 0\nstarted = itertools.count(1)\nstart = next(started)",
        "before_each": "batches += 1",
        "after_each": "ended += 1",
        "body": "def run(payload):\n    return [start, batches, ended]",
    },
    "node": {
        "before": "let batches = 0, ended = 0, start = (globalThis.start ?? 0) + 1",
        "before_each": "batches += 1",
        "after_each": "(async () => { ended += 1 })()",
        "body": "const run = (payload) => [start, batches, ended]",
    },
    "php": {
        "before": "$batches = 0; $ended = 0; $start = ($start ?? 0) + 1;",
        "before_each": "$batches++;",
        "after_each": "$ended++;",
        "body": "function run($payload) { global $start, $batches, $ended; return [$start, $batches, $ended]; }",
    },
    "sh": {
        "before": "batches=0 ended=0 start=$((start + 1))",
        "before_each": "batches=$((batches + 1))",
        "after_each": "ended=$((ended + 1))",
        "body": 'printf "[%s,%s,%s]" $start $batches $ended',
    },
}


@EVERY
async def test_before_runs_once_and_the_others_once_for_each_batch(shop: Bench, lang: str) -> None:
    """[29]"""
    work = handler(lang, **LIFE[lang])
    batches = [await shop.run(work, b"a", b"b"), await shop.run(work, b"c", b"d")]
    found = [json.loads(one.result or b"") for heard in batches for one in heard.outcomes.values()]
    assert found == [[1, 1, 0], [1, 1, 0], [1, 2, 1], [1, 2, 1]]


BROKEN = {
    "python": "raise ValueError('no luck')",
    "node": "throw new Error('no luck')",
    "php": "throw new Exception('no luck');",
    "sh": "echo no luck >&2; exit 3",
}
FINE = {
    "python": "def run(payload):\n    return 1",
    "node": "function run(payload) { return 1 }",
    "php": "function run($payload) { return 1; }",
    "sh": "echo 1",
}


@EVERY
@pytest.mark.parametrize("part", ["before", "before_each"])
async def test_a_beginning_that_fails_fails_every_job_of_the_batch(shop: Bench, lang: str, part: str) -> None:
    parts: dict[str, Any] = {part: BROKEN[lang]}
    heard = await shop.run(handler(lang, FINE[lang], **parts), b"a", b"b")
    assert heard.codes == [500, 500]
    names = {"before": "before ended with 3", "before_each": "beforeEach ended with 3"}
    assert {one.message for one in heard.outcomes.values()} == {names[part] if lang == "sh" else "no luck"}


@EVERY
async def test_an_end_that_fails_changes_no_outcome_and_costs_the_context(
    shop: Bench, lang: str, caplog: pytest.LogCaptureFixture
) -> None:
    work = handler(lang, FINE[lang], after_each=BROKEN[lang])
    first, second = await shop.run(work, b"a", b"b"), await shop.run(work, b"c")
    assert first.codes + second.codes == [200, 200, 200]
    assert first.pids["0000"] == first.pids["0001"] != second.pids["0000"]
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [text.partition(" failed: ")[0] for text in told] == ["afterEach of work of acme"] * 2
    assert all("no luck" in text for text in told)


@VALUED
async def test_source_that_cannot_be_read_or_defines_nothing_says_so(shop: Bench, lang: str) -> None:
    unreadable = await shop.value(lang, "this is (no")
    assert (unreadable.code, unreadable.type in ("SyntaxError", "ParseError")) == (500, True)
    empty = await shop.value(lang, {"python": "run = 1", "node": "var x = 1", "php": "$x = 1;"}[lang])
    assert (empty.code, "its body defines no run" in empty.message) == (500, True)


@VALUED
async def test_a_result_that_no_format_has_is_an_error(shop: Bench, lang: str) -> None:
    odd = {"python": "return float('nan')", "node": "return 1n", "php": "return NAN;"}
    assert (await shop.value(lang, FRAMES[lang].format(odd[lang]))).code == 500


async def test_a_payload_that_is_not_what_it_says_fails_for_good(shop: Bench) -> None:
    echo = ECHO["python"]
    heard = await shop.run(handler("python", echo), b"{no json", b"{no\njson", b"1", content_type=JSON)
    assert heard.codes == [400, 400, 200]
    packed = await shop.run(handler("python", echo), b"\xc1", msgspec.msgpack.encode(1), content_type=MSGPACK)
    assert packed.codes == [400, 200]
