"""Uploads: whether this server takes in code that workers will run. Until an operator says so, it does not."""

from collections.abc import Coroutine
from typing import Any

from windlass.model.errors import Denied
from windlass.model.operations import A, Operation, PutHandler, Service


class NoUploads:
    """A service that takes no handlers."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def __call__(self, operation: Operation[A], /) -> Coroutine[Any, Any, A]:
        if isinstance(operation, PutHandler):
            raise Denied("this server takes no handlers: it would have to be started with --allow-upload", at="handler")
        return self._service(operation)
