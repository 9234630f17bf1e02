"""A shop's tasks: the sample that the pictures of the dashboard are made with (`./dev screenshots`).

Try it: `windlass serve --app shop:app` in this folder, then `windlass enqueue send_mail '["ada@example.org", 1]'`.
"""

import time

from windlass import Windlass, current

app = Windlass()


@app.task(tags=["mail"], max_retry=0)
def send_mail(to: str, order: int) -> str:
    """Every ninth order has an address that no server takes."""
    print(f"order {order}: connecting to mail.example.org")
    if order % 9 == 0:
        raise ConnectionRefusedError(f"mail.example.org does not take mail for {to}")
    return f"sent to {to}"


@app.task(queue="payments", max_retry=3, retry={"base": 600})
def charge(order: int, cents: int) -> dict[str, int]:
    if order % 5 == 0:
        raise TimeoutError(f"the bank has not answered for order {order} within 10 s")
    return {"order": order, "charged": cents}


@app.task(queue="images", timeout="2m")
def thumbnail(path: str) -> str:
    if path.endswith(".tiff"):
        raise ValueError(f"{path}: this kind of image is not known")
    return path.replace(".png", "-small.png")


@app.task(queue="reports", timeout="10m")
def report(month: int) -> dict[str, int]:
    """Takes minutes, and says how far it is."""
    for page in range(1, 241):
        print(f"page {page}: {page * 40} rows")
        current.progress(page, 240, f"page {page}")
        time.sleep(0.25)
    return {"month": month, "rows": 9600}


@app.cron("0 3 * * *", tz="Europe/Rome", name="nightly-backup")
@app.task(queue="reports")
def backup() -> None: ...


@app.every("1h", name="rates")
@app.task(queue="payments")
def exchange_rates() -> str:
    return "EUR"
