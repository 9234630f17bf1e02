"""A crawler: the pages of one level are fetched at once; when all are there, their links are the next level.

Try it in this folder: `windlass worker crawler:app &`, then `python crawler.py https://example.org`. Titles are
collected in `titles.txt`.
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urldefrag, urljoin
from urllib.request import urlopen

from windlass import Windlass, group

app = Windlass("crawler.db")


@dataclass
class Page:
    url: str
    title: str
    links: list[str]


@app.task(max_retry=2, retry={"base": 1}, timeout="30s")
def fetch(url: str) -> Page:
    with urlopen(url, timeout=10) as answer:  # noqa: S310 - links of other schemes are left out
        text = answer.read(1_000_000).decode(errors="replace")
    title = re.search(r"<title>(.*?)</title>", text, re.DOTALL)
    links = [urldefrag(urljoin(url, link)).url for link in re.findall(r'href="([^"]+)"', text)]
    return Page(url, title[1] if title else "", [link for link in links if link.startswith(("http:", "https:"))])


@app.task
def collect(pages: list[Page | None], seen: list[str], depth: int) -> None:
    """A page that could not be fetched is None."""
    found = [page for page in pages if page is not None]
    with Path("titles.txt").open("a") as titles:
        titles.writelines(f"{page.url} {page.title}\n" for page in found)
    new = {link for page in found for link in page.links} - set(seen)
    if new and depth > 0:
        crawl(sorted(new), seen, depth - 1)


def crawl(urls: list[str], seen: list[str], depth: int) -> None:
    """A thousand pages of a level, at most: as many as one job can wait for."""
    rest = collect.using(after_failure="run").s(seen=[*seen, *urls], depth=depth)
    group(fetch.s(url) for url in urls[:1000]).then(rest).enqueue()


if __name__ == "__main__":
    crawl(sys.argv[1:], [], depth=3)
