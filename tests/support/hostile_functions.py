"""Functions that do whatever they like with their descriptors and their process, in every language, by dice.

A job's payload is source: some misdeeds one after the other. What they write is noise that looks like answers, marks
and new jobs. Everything follows from a seed.
"""

import base64
import random

RUNS = {
    "python": "import base64, os, subprocess, sys\ndef run(p):\n    exec(p)\n    return 'own'",
    "node": "const fs = require('node:fs'), sub = require('node:child_process');\n"
    "function run(p) { eval(p); return 'own' }",
    "php": "function run($p) { eval($p); return 'own'; }",
    "sh": 'eval "$(cat)"',
}
"""In each language: does what its payload says, then returns as if nothing had been."""

LATER = "sleep 0.0{n}; printf %s {data} | base64 -d >&{fd}"

DEEDS = {
    "python": {
        "write": "os.write({fd}, base64.b64decode('{data}'))",
        "close": "os.close({fd})",
        "turn": "os.dup2(os.open('/dev/null', os.O_RDWR), {fd})",
        "exit": "os._exit({n})",
        "die": "os.kill(os.getpid(), 9)",
        "throw": "raise RuntimeError({n})",
        "leave": f"subprocess.Popen(['/bin/sh', '-c', '{LATER}'], pass_fds=(4,))",
    },
    "node": {
        "write": "fs.writeSync({fd}, Buffer.from('{data}', 'base64'));",
        "close": "fs.closeSync({fd});",
        "turn": "fs.closeSync({fd}); fs.openSync('/dev/null', 'r+');",
        "exit": "process.exit({n});",
        "die": "process.kill(process.pid, 'SIGKILL');",
        "throw": "throw {n};",
        "leave": f"sub.spawn('/bin/sh', ['-c', '{LATER}'], {{{{stdio: ['ignore', 1, 2, 'ignore', 4]}}}});",
    },
    "php": {
        "write": "fwrite(fopen('php://fd/{fd}', 'w'), base64_decode('{data}'));",
        "close": "fclose([1 => STDOUT, 2 => STDERR][{fd}] ?? STDIN);",
        "turn": "ob_start(null, 0, 0); echo base64_decode('{data}');",
        "exit": "exit({n});",
        "die": "posix_kill(getmypid(), 9);",
        "throw": "throw new Error('', {n});",
        "leave": f"proc_open(['/bin/sh', '-c', '{LATER}'], [], $pipes);",
    },
    "sh": {
        "write": "printf %s {data} | base64 -d >&{fd}",
        "close": "exec {fd}>&-",
        "turn": "exec {fd}>/dev/null",
        "exit": "exit {n}",
        "die": "kill -9 $PPID",
        "throw": "false || exit {n}",
        "leave": f"{{{{ ({LATER}) & }}}}",
    },
}

ODDS = {"write": 12, "close": 1, "turn": 1, "exit": 1, "die": 1, "throw": 2, "leave": 2}

WORDS = (
    b"done ", b"end\n", b"end broken\n", b"load 1 {}\n", b"job ", b"1 ", b"2 ", b"17 ", b"100 ", b"200 ", b"299 ",
    b"300 ", b"404 ", b"500 ", b"999 ", b"-1 ", b"json ", b"error ", b"text64 ", b"base64 ", b"{}", b"[", b'"\\ud800"',
    b'{"after": 1e999}', b'{"type": 7}', b"!!", b"\n", b"\r\n", b"\x1e", b"\x00", b"\xff\xfe", b"9" * 30, b"x" * 20_000,
    b"done 1 200 json 1\n", b'done 2 500 error {"type": "Forged"}\n',
)  # fmt: skip

JOB_LINES = (
    b"J: made|fine\n", b"#J: made|fine\n", b"J: made|\n", b"J: made|a|b\x00\xff\n", b"J: made\n", b"J: |x\n", b"J: \n",
    b"J:made|x\n", b"J: no/name|x\n", b"J: ../made|x\n", b"J: other-tenant:made|x\n", b"J: " + b"n" * 300 + b"|x\n",
    b"J: made|" + b"y" * 20_000 + b"\n", b"J: made|torn", b"J: made|fine\n" * 2000, b"#J: \xff|x\n", b" J: made|x\n",
)  # fmt: skip


def noise(chance: random.Random) -> bytes:
    match chance.randrange(4):
        case 0:
            return chance.randbytes(chance.randrange(1, 2000))
        case 1:
            return b"".join(chance.choices(JOB_LINES, k=chance.randrange(1, 4)))
        case _:
            return b"".join(chance.choices(WORDS, k=chance.randrange(1, 30)))[:40_000]


def misdeed(lang: str, chance: random.Random) -> bytes:
    """One to four hostile things, on one line."""
    kinds = chance.choices(list(ODDS), list(ODDS.values()), k=chance.randrange(1, 5))
    deeds = [
        DEEDS[lang][kind].format(
            fd=chance.choice((1, 1, 2, 4, 4, 3) if kind != "leave" else (1, 2, 4)),
            n=chance.randrange(10),
            data=base64.b64encode(noise(chance)).decode(),
        )
        for kind in kinds
    ]
    return "; ".join(deeds).encode()
