"""The examples of workflows, each run as its reader would run it."""

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.support.patience import PATIENCE
from tests.support.worker_harness import until

EXAMPLES = Path(__file__).parents[2] / "examples"


@contextmanager
def worker(folder: Path, name: str, *flags: str) -> Iterator[None]:
    (folder / f"{name}.py").write_text((EXAMPLES / f"{name}.py").read_text())
    running = subprocess.Popen([sys.executable, "-m", "windlass", "worker", f"{name}:app", *flags], cwd=folder)
    try:
        yield
    finally:
        running.terminate()
        assert running.wait(PATIENCE) == 0


def run(folder: Path, name: str, *words: str) -> str:
    command = [sys.executable, f"{name}.py", *words]
    return subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True, timeout=PATIENCE).stdout


def test_the_pipeline_loads_the_files_of_all_shops(tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text("item,cents\nBoat ,900\nsail,none\n")
    (tmp_path / "two.csv").write_text("item,cents\nOAR,150\nrope,20\n")
    with worker(tmp_path, "etl", "-q", "default,database"):
        assert run(tmp_path, "etl", "one.csv", "two.csv") == "3 sales of 2 shops\n"
        assert run(tmp_path, "etl") == "0 sales of 0 shops\n", "no files are no sales"
        assert run(tmp_path, "etl", "two.csv", "one.csv") == "3 sales of 2 shops\n"
    with closing(sqlite3.connect(tmp_path / "sales.db")) as sales:
        assert sales.execute("SELECT * FROM sale").fetchall() == [("oar", 150), ("rope", 20), ("boat", 900)]


SITE = {
    "/": '<title>home</title> <a href="/a">a</a> <a href="/b#part">b</a> <a href="/lost"> <a href="ftp:x">',
    "/a": '<title>A</title> <a href="/">home</a> <a href="/b">b</a> <a href="c">c</a>',
    "/b": "<title>B</title>",
    "/c": '<title>C</title> <a href="/a">a</a>',
}


class Site(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        page = SITE.get(self.path)
        self.send_response(200 if page else 404)
        self.end_headers()
        self.wfile.write((page or "").encode())

    def log_message(self, *_: object) -> None: ...


def test_the_crawler_finds_each_page_once_though_some_are_lost(tmp_path: Path) -> None:
    site = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    threading.Thread(target=site.serve_forever, daemon=True).start()
    home = f"http://127.0.0.1:{site.server_port}/"
    titles = tmp_path / "titles.txt"
    with worker(tmp_path, "crawler"):
        run(tmp_path, "crawler", home)
        until(lambda: titles.exists() and len(titles.read_text().splitlines()) == len(SITE))
    site.shutdown()
    site.server_close()
    found = [line.removeprefix(home) for line in titles.read_text().splitlines()]
    assert found == [" home", "a A", "b B", "c C"]
