"""Functions over plain HTTP, on a real server with real interpreters: sent in, fed, chained, changed, stopped.

The numbers in brackets are the promises of an older function queue that a test holds us to.
"""

import base64
import itertools
import json
import os
import re
import socket
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from tests.support.http_servers import Process, process
from tests.support.patience import PATIENCE
from tests.support.ports import free_port
from tests.support.servers import Server
from tests.support.worker_harness import until

pytestmark = pytest.mark.timeout(240)

SOURCES = {
    "python": """
def run(payload):
    print(f"J: gather|python {payload}")
    return payload.upper()
""",
    "node": """
async function run(payload) {
  console.log(`J: gather|node ${payload}`);
  return payload.toUpperCase();
}
""",
    "php": """
function run($payload) {
  echo "J: gather|php $payload\\n";
  return strtoupper($payload);
}
""",
    "sh": """
read line
echo "#J: gather|sh $line"
printf %s "$line" | tr a-z A-Z
""",
}
"""In each language: answers the payload in capitals, and asks for a job that gathers it."""

_numbers = itertools.count(1)

SILENT = free_port()
"""A port of this machine that handlers may call."""

GATHER = "def run(payload):\n    return payload\n"


class Site:
    """A server, asked in JSON and text as anybody would, for a tenant that nobody else has."""

    def __init__(self, process: Process) -> None:
        self.tenant = f"shop{next(_numbers)}"
        headers = {"authorization": f"Bearer {process.token}"}
        self._http = httpx2.Client(
            base_url=process.address, headers=headers, trust_env=False, verify=False, timeout=PATIENCE
        )

    def ask(self, verb: str, path: str, status: int = 200, *, tenant: str = "", **more: Any) -> Any:
        """Of this tenant, or of another one whose name begins like its own."""
        response = self._http.request(verb, f"/v1/{self.tenant}{tenant}{path}", **more)
        assert response.status_code == status, response.text
        return response.json() if response.content else None

    def upload(self, task: str, body: str, lang: str = "python", *, tenant: str = "", **more: Any) -> Any:
        return self.ask("PUT", f"/handlers/{task}", tenant=tenant, json={"lang": lang, "body": body, **more})

    def feed(self, task: str, *lines: str, tenant: str = "", **options: Any) -> list[str]:
        text = "".join(f"{line}\n" for line in lines)
        made = self.ask("POST", f"/tasks/{task}/jobs", 201, tenant=tenant, content=text, params=options)
        ids: list[str] = made["ids"]
        return ids

    def job(self, id: str) -> Any:
        return self.ask("GET", f"/jobs/{id}")

    def ended(self, id: str, tenant: str = "") -> Any:
        return self.ask("GET", f"/jobs/{id}/result", tenant=tenant, params={"wait": PATIENCE})

    def count(self, tenant: str = "", **match: Any) -> int:
        found: int = self.ask("GET", "/jobs/count", tenant=tenant, params=match)["count"]
        return found

    def listed(self, tenant: str = "", **match: Any) -> list[Any]:
        found: list[Any] = self.ask("GET", "/jobs", tenant=tenant, params={"limit": 1000, **match})["jobs"]
        return found

    def output(self, id: str) -> str:
        chunks = self.ask("GET", f"/jobs/{id}/output")["chunks"]
        return b"".join(base64.b64decode(chunk["data"]) for chunk in chunks).decode()

    def close(self) -> None:
        self._http.close()


@pytest.fixture(scope="module", params=["sqlite", "redis"])
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """A server that takes handlers and runs them, and no app."""
    with ExitStack() as opened:
        store = ""
        if request.param == "redis":
            store = opened.enter_context(Server("redis", tmp_path_factory.mktemp("redis"), fsync="no")).url
        flags = ("--allow-upload", "--reach", f"127.0.0.1:{SILENT}")
        served = Process(tmp_path_factory.mktemp("serve"), *flags, store=store)
        served.start()
        yield served
        assert served.child is not None
        children = psutil.Process(served.child.pid).children(recursive=True)
        served.child.terminate()
        served.child.wait(PATIENCE)
        assert not psutil.wait_procs(children, 3)[1], "something was left behind"


@pytest.fixture
def site(running: Process) -> Iterator[Site]:
    found = Site(running)
    yield found
    found.close()


ON_A_FILE = pytest.mark.parametrize("running", ["sqlite"], indirect=True)


def test_functions_in_four_languages_are_fed_and_their_chained_jobs_run(site: Site) -> None:
    """[1, 28, 30, 39]"""
    site.upload("gather", GATHER)
    fed: dict[str, list[str]] = {}
    for lang, source in SOURCES.items():
        site.upload(f"shout-{lang}", source, lang)
        fed[lang] = site.feed(f"shout-{lang}", *(f"line {number}" for number in range(25)))
    for lang, ids in fed.items():
        assert [site.ended(id) for id in ids][3]["result"] == "LINE 3", lang
        assert {site.ended(id)["code"] for id in ids} == {200}
    until(lambda: site.count(task="gather", state="succeeded") == 100)
    gathered = [site.ended(job["id"])["result"] for job in site.listed(task="gather")]
    assert sorted(gathered) == sorted(f"{lang} line {number}" for lang in SOURCES for number in range(25))


def test_jobs_that_came_before_their_handler_run_once_it_is_set(site: Site) -> None:
    """[27]"""
    (waits,) = site.feed("late", "x")
    site.upload("other", GATHER)
    (done,) = site.feed("other", "y")
    assert site.ended(done)["result"] == "y"
    assert site.job(waits)["state"] == "queued"
    site.upload("late", GATHER)
    assert site.ended(waits)["result"] == "x"


def test_the_newest_version_runs(site: Site) -> None:
    """[26]"""
    for version in ("one", "two", "three"):
        site.upload("work", f"def run(payload):\n    return {version!r}\n")
        until(lambda: site.ended(site.feed("work", "x")[0])["result"] == version)  # noqa: B023 - asked at once


def test_a_handler_that_is_removed_leaves_jobs_waiting(site: Site) -> None:
    """[26, 27]"""
    site.upload("work", GATHER)
    assert site.ended(site.feed("work", "x")[0])["result"] == "x"
    site.ask("DELETE", "/handlers/work", 204)
    (waits,) = site.feed("work", "y", expires="1")
    until(lambda: site.job(waits)["state"] == "failed")
    assert site.job(waits)["reason"] == "expired"


def test_outcomes_are_what_the_code_says(site: Site) -> None:
    """[17, 18, 19, 20, 39]"""
    site.upload("exit", "read code; echo so; exit $code", "sh")
    ids = site.feed("exit", "0", "66", "1")
    later: dict[str, Any] = {"max_retry": 1, "retry.base": 3600}
    (again,) = site.feed("exit", "75", **later)
    assert [site.ended(id)["state"] for id in ids] == ["succeeded", "failed", "failed"]
    assert [site.job(id)["reason"] for id in ids[1:]] == ["failed", "error"]
    assert [site.ended(id)["code"] for id in ids] == [200, 466, 500]
    until(lambda: site.job(again)["state"] == "scheduled")
    assert (site.job(again)["reason"], site.job(again)["attempt"]) == ("retry", 1)


@ON_A_FILE
@pytest.mark.parametrize("listening", [False, True], ids=["refused", "timed out"])
def test_a_call_that_brings_no_answer_is_made_again(site: Site, listening: bool) -> None:
    """[33]"""
    with socket.create_server(("127.0.0.1", SILENT)) as silent:
        url = f"http://127.0.0.1:{SILENT}/"
        if not listening:
            silent.close()
        site.upload("call", url, "http", options={"timeout": 0.3 if listening else 60})
        again: dict[str, Any] = {"max_retry": 1, "retry.base": 0.1}
        (id,) = site.feed("call", "x", **again)
        assert site.ended(id)["state"] == "failed"
    job = site.job(id)
    assert job["attempt"] == 2
    assert {error["type"] for error in job["errors"]} == {"ETIMEDOUT" if listening else "ECONNREFUSED"}


@ON_A_FILE
def test_what_is_printed_is_the_output_of_its_job(site: Site) -> None:
    """[30]"""
    site.upload("talk", "def run(payload):\n    print('hello', payload)\n    print('J: no such|line')\n")
    ids = site.feed("talk", "a", "b", "c")
    for id, line in zip(ids, "abc", strict=True):
        assert site.ended(id)["state"] == "succeeded"
        assert f"hello {line}\n" in site.output(id)
    assert site.count() == 3


def test_chained_jobs_belong_to_the_tenant_and_queue_of_their_parent(site: Site) -> None:
    """[11, 30]"""
    forged = "def run(payload):\n    print('J: no/name|x')\n    print('J: next|' + payload)\n"
    for tenant in ("", "-a"):
        site.upload("next", f"def run(payload):\n    return 'here{tenant} ' + payload\n", tenant=tenant)
    site.upload("first", forged, tenant="-a")
    (id,) = site.feed("first", "x", tenant="-a")
    assert site.ended(id, "-a")["state"] == "succeeded"
    until(lambda: site.count("-a", task="next", state="succeeded") == 1)
    (made,) = site.listed("-a", task="next")
    assert (made["tenant"], made["queue"]) == (f"{site.tenant}-a", "default")
    assert site.ended(made["id"], "-a")["result"] == "here-a x"
    assert (site.count("-a"), site.count()) == (2, 0)


def test_contexts_are_reused_and_never_shared_by_tenants(site: Site) -> None:
    """[11, 29]"""
    counting: dict[str, Any] = {"before": "import os\nseen = []\n", "options": {"batch": 5, "recycle": 1000}}
    body = "def run(payload):\n    seen.append(payload)\n    return [os.getpid(), seen]\n"
    ids = {}
    for tenant in ("", "-mill"):
        site.upload("count", body, tenant=tenant, **counting)
        ids[tenant] = site.feed("count", *(f"of{tenant} {number}" for number in range(40)), tenant=tenant)
    processes: dict[str, Counter[int]] = {"": Counter(), "-mill": Counter()}
    for tenant, some in ids.items():
        for id in some:
            pid, seen = site.ended(id, tenant)["result"]
            assert {line.split()[0] for line in seen} == {f"of{tenant}"}
            processes[tenant][pid] += 1
    assert not processes[""].keys() & processes["-mill"].keys()
    assert all(len(found) < 40 for found in processes.values()), "each job had a context of its own"


def test_a_context_is_recycled_after_so_many_jobs(site: Site) -> None:
    """[29]"""
    body = "import os\nseen = []\ndef run(payload):\n    seen.append(payload)\n    return [os.getpid(), len(seen)]\n"
    site.upload("count", body, options={"recycle": 3, "batch": 1})
    found = [site.ended(id)["result"] for id in site.feed("count", *map(str, range(20)))]
    assert max(number for _, number in found) <= 3
    assert len({pid for pid, _ in found}) >= 20 / 3


def test_a_cancelled_function_is_stopped_at_once_and_its_neighbours_run(site: Site) -> None:
    body = "import time\ndef run(payload):\n    if payload == 'long':\n        time.sleep(600)\n    return payload\n"
    site.upload("nap", body)
    (nap,) = site.feed("nap", "long")
    others = site.feed("nap", *map(str, range(30)))
    pid = until(lambda: site.job(nap).get("pid"))
    site.ask("POST", f"/jobs/{nap}/cancel", json={})
    assert site.ended(nap)["state"] == "cancelled"
    until(lambda: not psutil.pid_exists(pid))
    assert [site.ended(id)["result"] for id in others] == [str(number) for number in range(30)]


@ON_A_FILE
def test_a_function_that_takes_too_long_is_stopped(site: Site) -> None:
    site.upload("nap", "sleep 600", "sh", options={"timeout": 0.5})
    ids = [*site.feed("nap", "x"), *site.feed("nap", "x", timeout="0.3")]
    for id in ids:
        assert site.ended(id)["state"] == "failed"
        assert site.job(id)["reason"] == "timeout"


@ON_A_FILE
def test_a_function_that_kills_its_process_costs_itself_alone(site: Site) -> None:
    body = "import os\ndef run(payload):\n    if payload == 'die':\n        os._exit(9)\n    return payload\n"
    site.upload("work", body)
    ids = site.feed("work", *(["ok"] * 20), "die", *(["ok"] * 20))
    states = Counter(site.ended(id)["state"] for id in ids)
    assert states == {"succeeded": 40, "failed": 1}
    assert site.job(ids[20])["reason"] == "crashed"


def test_a_server_takes_no_handlers_until_it_is_set_to(tmp_path: Path) -> None:
    with process(tmp_path) as closed:
        site = Site(closed)
        refused = site.ask("PUT", "/handlers/work", 403, json={"lang": "sh", "body": "cat"})
        assert "--allow-upload" in refused["detail"]
        assert site.ask("GET", "/handlers") == []
        site.close()


def test_the_page_on_functions_says_what_can_be_done(running: Process, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "functions.md").read_text()
    blocks = [block for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) if "curl" in block]
    script = "\n".join(["set -euo pipefail", *blocks])
    environ = {"PATH": os.environ["PATH"], "TOKEN": running.token, "queue": f"{running.address}/v1/default"}
    ran = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=90, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert '"result":{"file":"photo1.png","width":320}' in ran.stdout
    assert re.search(r"[0-9a-f-]{36}\n[0-9a-f-]{36}\n\Z", ran.stdout), "ids, a line each"
    assert json.loads((tmp_path / "made.json").read_text())["created"] == 100
