"""Refused when it is sent in: source that its own interpreter cannot read, and a URL that jobs are not sent to."""

from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.http_servers import process
from tests.support.worker_harness import ON_A_FILE, WorkerHarness
from windlass.model.errors import Denied, Invalid
from windlass.model.handler import NewHandler
from windlass.worker.functions import FunctionOptions
from windlass.worker.functions.languages import check_upload
from windlass.worker.network import Allowed, Network, read_allowed

NETWORK = Network(Allowed())

GOOD = {
    "python": "import nowhere\nasync def run(p):\n    return await p\n",
    "node": "async function run(p) { return `${p}`; }",
    "php": "<?php\nfunction run($p) { return $p; }",
    "sh": 'while read -r line; do echo "$line"; done',
}
BAD = {
    "python": ("x = 1\ndef run(p:\n    return p", "SyntaxError", "line 2"),
    "node": ("var x = 1;\nfunction run(p) { return p", "SyntaxError", ""),
    "php": ("function run($p) {\n return $p", "Parse error", ""),
    "sh": ("if true; then\n echo x", "unexpected", ""),
}


@pytest.mark.parametrize("lang", GOOD)
@pytest.mark.parametrize("part", ["body", "before", "before_each", "after_each"])
async def test_source_is_read_and_not_run(lang: Any, part: str) -> None:
    good: dict[str, Any] = {"body": GOOD[lang], part: GOOD[lang]}
    await check_upload(NewHandler(lang=lang, **good), FunctionOptions(), NETWORK)
    source, kind, place = BAD[lang]
    with pytest.raises(Invalid) as fault:
        await check_upload(NewHandler(lang=lang, **{**good, part: source}), FunctionOptions(), NETWORK)
    names = {"before_each": "beforeEach", "after_each": "afterEach"}
    assert fault.value.at == names.get(part, part)
    assert kind in fault.value.detail
    assert place in fault.value.detail


async def test_without_an_interpreter_that_works_nothing_is_refused(tmp_path: Path) -> None:
    broken = NewHandler(lang="python", body="this is (no")
    await check_upload(broken, FunctionOptions(interpreters={"python": str(tmp_path / "nowhere")}), NETWORK)
    await check_upload(broken, FunctionOptions(interpreters={"python": "/bin/false"}), NETWORK)
    await check_upload(NewHandler(lang="http", body="https://x.example/"), FunctionOptions(), NETWORK)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://127.0.0.1:6379/", "127.0.0.1 is not a public address"),
        ("https://10.0.0.7/", "10.0.0.7 is not a public address"),
        ("http://[::ffff:169.254.169.254]/", "169.254.169.254 is not a public address"),
        ("http://93.184.216.34/", "only with https://"),
    ],
)
async def test_a_url_that_jobs_are_not_sent_to_is_refused(url: str, why: str) -> None:
    with pytest.raises(Denied) as fault:
        await check_upload(NewHandler(lang="http", body=url), None, NETWORK)
    assert fault.value.at == "body"
    assert why in fault.value.detail


async def test_a_url_that_the_operator_allows_is_taken() -> None:
    allowed = Network(read_allowed(["127.0.0.1:9000"]))
    await check_upload(NewHandler(lang="http", body="http://127.0.0.1:9000/"), None, allowed)


def test_a_server_refuses_it(tmp_path: Path) -> None:
    with process(tmp_path, "--allow-upload") as server:
        headers = {"authorization": f"Bearer {server.token}"}
        with httpx2.Client(base_url=server.address, headers=headers, trust_env=False, timeout=60) as http:
            for lang, (source, _, _) in BAD.items():
                new = http.put("/v1/default/handlers/work", json={"lang": lang, "body": source})
                assert (new.status_code, new.json()["at"]) == (400, "body"), new.text
                old = http.post(f"/default/handler/add/work/add?method={lang}", content=source)
                assert old.status_code == 400, old.text
            url = {"lang": "http", "body": "http://127.0.0.1:6379/"}
            forbidden = http.put("/v1/default/handlers/work", json=url)
            assert (forbidden.status_code, forbidden.json()["at"]) == (403, "body"), forbidden.text
            assert "--reach 127.0.0.1:6379" in forbidden.json()["detail"]
            assert http.get("/v1/default/handlers").json() == []
            assert http.put("/v1/default/handlers/work", json={"lang": "sh", "body": "cat"}).status_code == 200


@ON_A_FILE
def test_so_does_the_command(harness: WorkerHarness) -> None:
    (harness.folder / "broken.py").write_text("def run(p:\n    return p")
    said = harness.run("handlers", "set", "work", "broken.py", "--tenant", harness.tenant)
    assert (said.returncode, "python cannot read it: SyntaxError" in said.stderr) == (2, True), said
