"""The rules in force, as one connection remembers them.

Another process may have changed them, so the first who asks in a transaction looks at their edition; the same look
tells whether lanes were dropped. Knows the one row they are kept in; what they mean is for others.
"""

from collections.abc import Callable

import apsw
import msgspec

from windlass.store.flow import Rules

_EDITION = "SELECT edition, sweeps FROM rules"
_DATA = "SELECT data FROM rules"
_PUT = "UPDATE rules SET edition = ?, data = ?"
_SWEPT = "UPDATE rules SET sweeps = sweeps + 1"

_pack = msgspec.msgpack.Encoder()
_unpack = msgspec.msgpack.Decoder(Rules)


class Regulation:
    """The rules of one file."""

    def __init__(self, sql: apsw.Connection, on_swept: Callable[[], None]) -> None:
        self._sql = sql
        self._on_swept = on_swept
        """Called when somebody else has dropped lanes."""
        self._sweeps = 0
        self._rules = Rules()
        self._checked = False

    def doubt(self) -> None:
        """A transaction begins: they may have changed."""
        self._checked = False

    def forget(self) -> None:
        """A transaction has failed: they may have been changed in it."""
        self._rules, self._checked = Rules(), False

    def get(self) -> Rules:
        if not self._checked:
            edition, sweeps = self._sql.execute(_EDITION).get
            if sweeps != self._sweeps:
                self._on_swept()
                self._sweeps = sweeps
            if edition != self._rules.edition:
                self._rules = _unpack.decode(self._sql.execute(_DATA).get)
            self._checked = True
        return self._rules

    def put(self, rules: Rules) -> None:
        self._sql.execute(_PUT, (rules.edition, _pack.encode(rules)))
        self._rules, self._checked = rules, True

    def sweep(self) -> None:
        """Lanes were dropped here, and forgotten."""
        self.get()
        self._sql.execute(_SWEPT)
        self._sweeps += 1
