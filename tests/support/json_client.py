"""A server as anybody would ask it: over HTTP, in JSON, for the default tenant."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2

from tests.support.http_servers import Process
from tests.support.patience import PATIENCE


class Site:
    """One server."""

    def __init__(self, http: httpx2.Client) -> None:
        self.http = http

    def ask(self, verb: str, path: str, **more: Any) -> Any:
        response = self.http.request(verb, f"/v1/default{path}", **more)
        assert response.is_success, response.text
        return response.json()

    def ended(self, id: str) -> Any:
        """A job, once it has."""
        self.ask("GET", f"/jobs/{id}/result", params={"wait": PATIENCE})
        return self.ask("GET", f"/jobs/{id}")


@contextmanager
def calling(served: Process) -> Iterator[httpx2.Client]:
    headers = {"authorization": f"Bearer {served.token}"}
    with httpx2.Client(base_url=served.address, headers=headers, trust_env=False, timeout=2 * PATIENCE) as http:
        yield http
