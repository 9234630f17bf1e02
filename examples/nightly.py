"""Every night: a copy of a database, kept for two weeks.

Run it with `windlass worker nightly:app` in this folder. `windlass schedules run backup` makes a copy at once.
"""

import os
import sqlite3
from datetime import UTC, datetime
from pathlib import Path

from windlass import Windlass

app = Windlass()
database = Path(os.environ.get("DATABASE", "shop.db"))
copies = Path(os.environ.get("COPIES", "copies"))
KEPT = 14


@app.cron("30 3 * * *", tz="Europe/Rome", jitter="5m")
@app.task(max_retry=3, retry={"base": "1m"}, timeout="30m")
def backup() -> str:
    """One copy a day, whole or not at all; run again, it is the same copy."""
    copies.mkdir(exist_ok=True)
    target = copies / f"{datetime.now(UTC):%Y-%m-%d}.db"
    with sqlite3.connect(database) as connection, sqlite3.connect(target.with_suffix(".part")) as copy:
        connection.backup(copy)
    target.with_suffix(".part").replace(target)
    for old in sorted(copies.glob("*.db"))[:-KEPT]:
        old.unlink()
    return target.name
