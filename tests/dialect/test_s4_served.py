"""Notifications, as `windlass serve` accepts and lists them."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.support.http_servers import process, web
from tests.support.patience import PATIENCE
from tests.support.servers import StartServer

MIB = 1 << 20
STORES_CACHE = 32 * MIB
"""What a store in a file keeps in memory of whatever it reads."""

LISTING = "/management/queue/notifications"
NOTIFICATION = {"data": [{"id": "Room:1", "type": "Room"}]}


async def test_a_long_listing_takes_no_room_and_begins_at_once(tmp_path: Path) -> None:
    """S4 20 and 23: the room is that of some notifications, not of all."""
    some, size = 20_000, 4000
    with process(tmp_path) as running:
        async with web(running.address, running.token) as client:
            body = b'{"task": "notify", "payload": {"payload": "%s"}}\n' % (b"x" * size) * (some // 10)
            for _ in range(10):
                headers = {"content-type": "application/x-ndjson"}
                assert (await client.post("/v1/default/jobs/batch", content=body, headers=headers)).status_code == 201
            running.kill()
            running.start()  # so that no room is left over from what was sent
            assert (await client.get(f"{LISTING}?taskStatus=failed")).json() == []
            before, most, pieces = running.memory(), 0, list[bytes]()
            async with client.stream("GET", LISTING) as response:
                async for piece in response.aiter_bytes():
                    if not pieces:
                        late = await client.post(
                            "/v1/default/jobs", json={"task": "notify", "payload": {"payload": ""}}
                        )
                        assert late.status_code == 201
                    pieces.append(piece)
                    most = max(most, running.memory())
            listed = msgspec.json.decode(b"".join(pieces))
            assert (await client.get(f"{LISTING}/count")).json() == some + 1
    print(f"{(most - before) / MIB:+.1f} MiB")  # noqa: T201
    assert most - before < STORES_CACHE + 16 * MIB < some * size
    assert len(listed) == some + 1, "it begins before it has read all: what came after its first piece is in it"


async def test_the_settings_of_notifications_hold(tmp_path: Path) -> None:
    """S4 13, 15, 25 and 26."""
    chosen = {"max_retry": "2", "keep_success": "5m", "trailing_null": "true", "wrapped_summary": "true"}
    settings = {f"WINDLASS_NOTIFICATIONS_{name.upper()}": value for name, value in chosen.items()}
    with process(tmp_path, **settings) as running:
        async with web(running.address, running.token) as client:
            assert (await client.post("/v2/notify", json=NOTIFICATION)).text == "queued\n"
            answer, end = (await client.get(f"{LISTING}/summary")).json()
            (job,) = (await client.get("/v1/default/jobs")).json()["jobs"]
    assert (answer["runtime"]["retries_left"], end) == (2, None)
    assert (job["max_retry"], job["keep_success"], job["keep_failure"]) == (2, 300, 604_800)


APP = """
from windlass import Windlass
app = Windlass()
@app.task
def notify(payload: list, fiware_service: str | None, fiware_service_path: str, fiware_correlator: str | None):
    open("seen", "a").write(f"{fiware_service} {fiware_service_path} {payload[0]['id']}\\n")
    assert payload[0]["id"] != "Room:2"
"""


async def test_a_worker_gets_what_was_sent_as_arguments(tmp_path: Path) -> None:
    """S4 2 and 4: by the app of the server, before the answer."""
    (tmp_path / "notes.py").write_text(APP.replace("seen", str(tmp_path / "seen")))
    settings = {"PYTHONPATH": str(tmp_path), "WINDLASS_NOTIFICATIONS_OFFLOAD": "false"}
    with process(tmp_path, "--app", "notes:app", **settings) as running:
        async with web(running.address, running.token) as client:
            client.headers["fiware-service"] = "shop"
            done = await client.post("/v2/notify", json=NOTIFICATION)
            assert (done.status_code, done.text) == (200, "done\n"), done.text
            assert (tmp_path / "seen").read_text() == "shop / Room:1\n"
            failed = await client.post("/v2/notify", json={"data": [{"id": "Room:2", "type": "Room"}]})
            assert (failed.status_code, failed.json()["code"]) == (500, "not_done")


async def test_a_notification_is_done_without_the_queue_while_it_is_down(
    tmp_path: Path, start_server: StartServer
) -> None:
    """S4 3: with recovery on, by the app of the server; the server itself runs nothing."""
    (tmp_path / "notes.py").write_text(APP.replace("seen", str(tmp_path / "seen")))
    settings = {"PYTHONPATH": str(tmp_path), "WINDLASS_NOTIFICATIONS_RECOVER": "true"}
    redis = start_server("redis")
    with process(tmp_path, "--app", "notes:app", "--no-journal", store=redis.url, **settings) as running:
        redis.kill()
        async with web(running.address, running.token) as client:
            done = await client.post("/v2/notify", json=NOTIFICATION)
            assert (done.status_code, done.text) == (200, "done\n"), done.text
            assert (tmp_path / "seen").read_text() == "None / Room:1\n"
            failed = await client.post("/v2/notify", json={"data": [{"id": "Room:2", "type": "Room"}]})
            assert (failed.status_code, failed.json()["code"]) == (500, "not_done")
            assert (tmp_path / "seen").read_text().count("Room:2") == 1
            redis.start()
            assert (await client.post("/v2/notify", json=NOTIFICATION)).text in ("queued\n", "done\n")


@pytest.mark.parametrize(
    ("flags", "what_to_do"),
    [((), "name one with --app"), (("--app", "notes:app", "--no-worker"), "without --no-worker")],
)
def test_recovery_without_an_app_is_refused(tmp_path: Path, flags: tuple[str, ...], what_to_do: str) -> None:
    environ = dict(os.environ, WINDLASS_NOTIFICATIONS_RECOVER="true")
    command = [sys.executable, "-m", "windlass", "serve", "--store", str(tmp_path / "jobs.db"), *flags]
    ran = subprocess.run(command, capture_output=True, text=True, env=environ, check=False, timeout=PATIENCE)
    assert ran.returncode == 2
    assert what_to_do in ran.stderr
