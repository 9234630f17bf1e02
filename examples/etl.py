"""An ETL pipeline: the files of all shops are read and cleaned at once, then loaded in one transaction.

Try it in this folder: `windlass worker etl:app -q default,database &`, then `python etl.py shop1.csv shop2.csv`. The
files have the columns `item` and `cents`.
"""

import csv
import sqlite3
import sys
from pathlib import Path

from windlass import Windlass, chain, group

app = Windlass("etl.db")


@app.task(max_retry=3)
def extract(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@app.task
def clean(rows: list[dict[str, str]]) -> list[tuple[str, int]]:
    return [(row["item"].strip().lower(), int(row["cents"])) for row in rows if row["cents"].isdigit()]


@app.task(queue="database", max_retry=3)
def load(shops: list[list[tuple[str, int]]]) -> int:
    rows = [row for shop in shops for row in shop]
    with sqlite3.connect("sales.db") as sales:
        sales.execute("CREATE TABLE IF NOT EXISTS sale (item TEXT, cents INTEGER)")
        sales.execute("DELETE FROM sale")  # it may run twice
        sales.executemany("INSERT INTO sale VALUES (?, ?)", rows)
    return len(rows)


@app.task
def report(number: int, files: int) -> str:
    return f"{number} sales of {files} shops"


if __name__ == "__main__":
    paths = [Path(name) for name in sys.argv[1:]]
    steps = group(chain(extract.s(path), clean) for path in paths).then(load, report.s(files=len(paths)))
    print(steps.enqueue().result(timeout="1m"))
