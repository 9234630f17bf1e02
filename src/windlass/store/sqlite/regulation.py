"""The rules in force, as one connection remembers them.

Another process may have changed them, so the first who asks in a transaction looks at their edition. Knows the one row
they are kept in; what they mean is for others.
"""

import apsw
import msgspec

from windlass.store.flow import Rules

_EDITION = "SELECT edition FROM rules"
_DATA = "SELECT data FROM rules"
_DROP = "DELETE FROM rules"
_PUT = "INSERT INTO rules (edition, data) VALUES (?, ?)"

_pack = msgspec.msgpack.Encoder()
_unpack = msgspec.msgpack.Decoder(Rules)


class Regulation:
    """The rules of one file."""

    def __init__(self, sql: apsw.Connection) -> None:
        self._sql = sql
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
            edition = self._sql.execute(_EDITION).get or 0
            if edition != self._rules.edition:
                self._rules = _unpack.decode(self._sql.execute(_DATA).get)
            self._checked = True
        return self._rules

    def put(self, rules: Rules) -> None:
        self._sql.execute(_DROP)
        self._sql.execute(_PUT, (rules.edition, _pack.encode(rules)))
        self._rules, self._checked = rules, True
