"""Short functions of scripts are written out where they are called, and every script means what it meant before."""

import re
from importlib.resources import files

import pytest
import redis

from tests.servers import Server
from windlass.store.redis.scripts import HEAD, PARTS, PLAIN, script
from windlass.store.redis.unfolding import unfold

DOUBLE = "local function double(n) return n + n end\n"
KEY = "local K = 'wl'\nlocal function key(name) return K .. ':' .. name end\n"
NOTE = "local function note(name, n) redis.call('HINCRBY', 'notes', name, n) end\n"


@pytest.mark.parametrize(
    ("source", "then"),
    [
        (f"{KEY}return key('a')\n", "local K = 'wl'\nreturn (K .. ':' .. 'a')\n"),
        (f"{KEY}return key('a' .. x)\n", "local K = 'wl'\nreturn (K .. ':' .. ('a' .. x))\n"),
        (f"{KEY}return #key('(') + #key(struct.pack('>I', f[1][2]))\n",
         "local K = 'wl'\nreturn #(K .. ':' .. '(') + #(K .. ':' .. (struct.pack('>I', f[1][2])))\n"),
        (f"{DOUBLE}return double(x) * 2\n", "return (x + x) * 2\n"),
        (f"{NOTE}if x then note('a', 1) end\nnote('b', x)\n",
         "if x then redis.call('HINCRBY', 'notes', 'a', 1) end\nredis.call('HINCRBY', 'notes', 'b', x)\n"),
        ("local function both(a, b) return a or b end\nreturn both(x)\n", "return (x or nil)\n"),
        ("local function late(a)\n  return a .. '!'\nend\nreturn late(x)\n", "return (x .. '!')\n"),
        (f"{KEY}local function log(a) return key('log') .. a end\nreturn log(x)\n",
         "local K = 'wl'\nreturn ((K .. ':' .. 'log') .. x)\n"),
        (f"{DOUBLE}return 1\n", "return 1\n"),
        (f"{DOUBLE}return 'n'..double(x)\n", "return 'n'..(x + x)\n"),
    ],
)  # fmt: skip
def test_it_is_written_out(source: str, then: str) -> None:
    assert unfold(source) == then


@pytest.mark.parametrize(
    "source",
    [
        f"{DOUBLE}return double(next_one())\n",
        f"{KEY}for K = 1, 2 do f(key(K)) end\n",
        f"{KEY}local function other(K) return #K == 1 and key(K) end\nother(f)\n",
        f"{NOTE}return x and note('a', 1)\n",
        "local function pair(id, n) return { id = id, n = n } end\nreturn pair(1, 2)\n",
        "local function least(a) if a then return a end end\nreturn least(1)\n",
        f"{DOUBLE}return map(list, double)\n",
        f"{DOUBLE}return double(1, 2)\n",
        f"{DOUBLE}{DOUBLE}return double(x)\n",
        f"{KEY}return key(redis.call('INCR', 'n'))\n",
        f"{KEY}local\n  a, K = 1, 2\nreturn key(a)\n".replace("local\n  a,", "local a,\n  "),
        "local function both(a, b) return a, b end\nreturn both(x, y)\n",
        "local function first(a, b) return a end\nreturn first(x, next_one())\n",
        "local function twice(a) f(a) f(a) end\ntwice(x)\n",
        f"{DOUBLE}local function twice(double) f(double)\n  return double(x) end\n",
        f"{DOUBLE}return own.double(x) + own:double(x) + double_it(x)\n".replace(DOUBLE, ""),
    ],
)
def test_a_call_stays_where_it_would_mean_something_else(source: str) -> None:
    assert unfold(source) == source


def test_what_is_written_out_gives_the_same_on_a_server(redis_server: Server) -> None:
    source = (
        "local K = KEYS[1]\n"
        "local function stamp(time) return string.format('%.0f', time) end\n"
        "local function chunk_of(pos) return (pos - pos % 64) / 64 end\n"
        "local function has(set, flag) return bit.band(set, flag) ~= 0 end\n"
        "local function words_of(names) return #names > 0 and ',' .. table.concat(names, ',') .. ',' or '' end\n"
        "local function keep(name, n) redis.call('SET', K .. name, n) end\n"
        "if not has(5, 2) then keep('a', stamp(chunk_of(200) + 1)) end\n"
        "local all = { 'x', 'y' }\n"
        "return { redis.call('GET', K .. 'a'), 2 * chunk_of(128), words_of(all), words_of(redis), not has(4, 4) }\n"
    )
    assert "function" not in unfold(source)
    with redis.Redis.from_url(redis_server.url) as client:
        told = [client.eval(text, 1, "unfolded:") for text in (source, unfold(source))]
    assert told == [[b"4", 4, b",x,y,", b"", None]] * 2


def test_the_lone_jobs_script_makes_one_function() -> None:
    """Each that is made is swept up again, by every fiftieth call of a server: whoever sends that one waits for it."""
    assert re.findall(r"function (\w+)", script("add_one").source) == ["lift"]


def test_every_script_can_be_read_by_a_server(redis_server: Server) -> None:
    parts = {part for *head, _ in (HEAD, PLAIN, *PARTS.values()) for part in head} | {HEAD[-1]}
    names = {file.name.removesuffix(".lua") for file in (files("windlass.store.redis") / "lua").iterdir()} - parts
    with redis.Redis.from_url(redis_server.url) as client:
        for name in names:
            assert client.script_load(script(name).source) == script(name).sha
