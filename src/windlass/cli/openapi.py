"""`windlass openapi`: the document that a server gives at /openapi.json."""

from typing import Any

from windlass.cli import saying
from windlass.cli.place import HERE, Place
from windlass.dialect import s2, s3, s4
from windlass.server.application import VERSION
from windlass.server.limits import Limits
from windlass.server.openapi import document


def openapi(*, place: Place = HERE) -> None:  # noqa: ARG001 - every command has these options
    """Print the OpenAPI document of the server, for generators of clients. No store and no server is needed.

    For example:
      windlass openapi > openapi.json
    """
    none: Any = None  # the routes are described, none of them is asked
    limits = Limits()
    also = [*s2.routes(none, none, limits), *s3.routes(none, none, limits), *s4.routes(none, none, limits)]
    saying.write_json(document(VERSION, tuple(route.entry for route in also)))
