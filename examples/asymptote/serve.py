"""A page that draws: with Asymptote where it is installed, else with the small program beside this file.

    python examples/asymptote/serve.py [PORT]

Starts a Windlass server with a worker in a folder of its own, sets the tiers of the queue, and serves the page. The
page talks to the server over WebSockets, as any client of `/asy` would.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

HERE = Path(__file__).parent
TENANT = "visitors"
TIERS = ("--tier", "fast:3s:100%", "--tier", "medium:10s:50%", "--tier", "slow:30s:20%")
START_WITHIN = 60

WINDLASS = (sys.executable, "-m", "windlass")
SMALL = f"{sys.executable} {HERE / 'small_draw.py'}"
SAMPLES = {
    True: 'size(200);\ndraw(unitcircle, red);\ndraw((-1,0)--(1,0));\nlabel("$O$", (0,0), S);\n',
    False: "circle 50 50 40 red\nline 10 50 90 50\ntext 46 60 O\nwrite drawn\n",
}


def main() -> None:
    port = int(sys.argv[1]) if sys.argv[1:] else 8100
    real = shutil.which("asy") is not None
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C: the server must end too
    with tempfile.TemporaryDirectory(prefix="draw") as folder:
        environ = {**os.environ, **settings(Path(folder), real=real)}
        subprocess.run([*WINDLASS, "queues", "set", "asy", *TIERS], env=environ, check=True, stderr=subprocess.DEVNULL)
        command = [
            *WINDLASS,
            "serve",
            "--port",
            str(port + 1),
            "--data",
            f"{folder}/server",
            "--app",
            "windlass.asy_app",
        ]
        server = subprocess.Popen(command, env=environ)
        try:
            address = f"http://127.0.0.1:{port + 1}"
            wait_for(f"{address}/readyz", server)
            page = (
                (HERE / "page.html").read_text().replace("{{server}}", address).replace("{{sample}}", sample(real=real))
            )
            print(f"draws with {'Asymptote' if real else 'the small program'}: http://127.0.0.1:{port}", flush=True)
            serve_page(port, page, f"{address}/asy/status")
        except KeyboardInterrupt:
            pass
        finally:
            server.terminate()
            server.wait()


def settings(folder: Path, *, real: bool) -> dict[str, str]:
    drawn = {} if real else {"WINDLASS_ASY_PROGRAM": f"{SMALL} {{out}} {{main}}", "WINDLASS_ASY_SHELL": SMALL}
    own = {"WINDLASS_STORE": str(folder / "draw.db"), "WINDLASS_TENANT": TENANT, "WINDLASS_ASY_PUBLIC": TENANT}
    return {**own, "WINDLASS_WORKER_SLOTS": "4", "WINDLASS_WORKER_HANDLERS": "false", **drawn}


def sample(*, real: bool) -> str:
    return json.dumps(SAMPLES[real])[1:-1].replace("`", "\\`").replace("$", "\\$")


def wait_for(url: str, server: "subprocess.Popen[bytes]") -> None:
    for _ in range(START_WITHIN * 10):
        if server.poll() is not None:
            sys.exit("the server has not started")
        try:
            urlopen(url).close()  # noqa: S310 - the server that was started here
        except URLError:
            time.sleep(0.1)
        else:
            return
    sys.exit(f"the server did not start within {START_WITHIN} s")


def serve_page(port: int, page: str, status: str) -> None:
    """The page, and the status of the server, which a browser would not fetch from another port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/status":
                with urlopen(status) as answer:  # noqa: S310 - the same
                    self._answer("application/json", answer.read())
            elif self.path == "/":
                self._answer("text/html; charset=utf-8", page.encode())
            else:
                self.send_error(404)

        def _answer(self, kind: str, body: bytes) -> None:
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Says nothing of each request."""

    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    main()
