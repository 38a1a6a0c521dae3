"""Honest programs, by family: whole programs, whose output plain CPython decides.

A family is the body of a program. Variables before it, stdin, arguments and files are drawn from a seed.
"""
# ruff: noqa: E501

from __future__ import annotations

import random

from coterie.core.protocols import Limits, Program

LIMITS = Limits(cpu_seconds=10, wall_seconds=60, memory_mb=512, output_kb=256)
WORDS = [
    "alpha",
    "beta",
    "Gamma",
    "delta",
    "épsilon",
    "zeta",
    "eta",
    "theta",
    "iota",
    "kappa",
    "λάμδα",
    "mu",
    "nu",
    "xi",
    "omicron",
    "pi",
]

FAMILIES = {
    "arithmetic": "print(n ** m, n // m, n % m, -n // m, divmod(-n, m), n / m, pow(n, -1, 10007) if n % 10007 else 0)",
    "strings": "print(*[f'{w:>{m + 8}}|{w.title()!r}|{w[::-1]}' for w in words], sep='\\n')",
    "formats": "print(f'{n:08.3f} {n:+x} {n:,} {m:e} {numbers!r:.30}', '%05d %s %r' % (n, words[0], words[1]))",
    "comprehensions": "print({w: len(w) for w in words}, {len(w) for w in words}, [*zip(words, numbers)])",
    "classes": "class A:\n    def __init__(s, x): s.x = x\n    def __repr__(s): return f'A({s.x})'\n"
    "    def __lt__(s, o): return s.x < o.x\nprint(sorted(map(A, numbers)))",
    "generators": "def g(k):\n    while k:\n        yield k\n        k //= 2\nprint([*g(n)], sum(g(n * m)))",
    "exceptions": "for x in (*numbers, 0, 'a'):\n    try: print(n // x)\n    except (ZeroDivisionError, TypeError) as e: "
    "print(type(e).__name__, e)\n    finally: print('.')",
    "uncaught": "import sys\nprint('before')\nsys.stdout.flush()\nraise [KeyError, ValueError, OSError][n % 3](words[0])",
    "exit codes": "import sys\nprint('x', end='')\nsys.exit([0, n % 200, None, words[0]][m % 4])",
    "exit and quit": "print(n)\n(exit if n % 2 else quit)(m % 7)",
    "stdin by lines": "import sys\nfor line in sys.stdin: print(repr(line), len(line.rstrip()))",
    "stdin by input": "try:\n    while True: print(repr(input()))\nexcept EOFError: print('end')",
    "stdin whole": "import sys\ntext = sys.stdin.read()\nprint(len(text), text.split()[:5], repr(text[-3:]))",
    "stdin bytes": "import sys\nd = sys.stdin.buffer.read()\nprint(len(d), d.count(b'\\r'), d[:9])",
    "stdout bytes": "import sys\nsys.stdout.buffer.write(bytes(numbers[:3]) and words[0].encode() + b'\\r\\n')\nprint(end='\\r\\n')",
    "files": "import os\nfor w in words:\n    with open(f'{w}.txt', 'a', newline='') as f: f.write(w + '\\r\\n')\n"
    "print(sorted(os.listdir('.')), open(words[0] + '.txt', 'rb').read(), open('notes.txt').read())",
    "folders": "import os, shutil\nos.makedirs('a/b/c')\nshutil.copy('notes.txt', 'a/b')\nfor r, d, f in os.walk('a'): print(r, d, f)\n"
    "shutil.rmtree('a')\nprint(os.path.exists('a'))",
    "own modules": "import helper, package.inner\nfrom package import value\nprint(helper.double(n), package.inner.name, value)",
    "own queue.py": "import own, sys\nprint(own.double(n), 'queue' in sys.modules)",
    "argv": "import sys\nprint(sys.argv[1:], len(sys.argv))",
    "argparse": "import argparse\np = argparse.ArgumentParser(prog='p')\np.add_argument('x', nargs='*')\np.add_argument('-k', type=int, default=m)\n"
    "print(p.parse_args(['-k', str(n), *words[:2]]), p.parse_args([]))\np.parse_args(['-k', 'no'])",
    "threads": "import threading\nout, lock = [], threading.Lock()\ndef f(k):\n    with lock: out.append(k * n)\n"
    "ts = [threading.Thread(target=f, args=(k,)) for k in range(6)]\n[t.start() for t in ts]; [t.join() for t in ts]\nprint(sorted(out))",
    "threads and queue": "import queue, threading\nq, out = queue.Queue(), []\ndef f():\n    while (x := q.get()) is not None: out.append(x + n)\n"
    "ts = [threading.Thread(target=f) for _ in range(3)]\n[t.start() for t in ts]\nfor x in numbers: q.put(x)\n"
    "for _ in ts: q.put(None)\n[t.join() for t in ts]\nprint(sorted(out))",
    "thread that is left": "import threading, time\ndef f():\n    time.sleep(.02)\n    print('late', n)\nthreading.Thread(target=f).start()\nprint('first')",
    "daemon and event": "import threading\ne = threading.Event()\nt = threading.Thread(target=e.wait, daemon=True)\nt.start()\nprint(t.is_alive(), threading.active_count())",
    "concurrent.futures": "from concurrent.futures import ThreadPoolExecutor as P, as_completed\nwith P(3) as p:\n"
    "    print([*p.map(lambda x: x * n, numbers)], sorted(f.result() for f in as_completed([p.submit(len, w) for w in words])))",
    "asyncio": "import asyncio\nasync def f(k):\n    await asyncio.sleep(.001 * (k % 3))\n    return k * n\n"
    "async def main():\n    print(await asyncio.gather(*map(f, range(5))))\n    async with asyncio.timeout(5): await asyncio.sleep(0)\nasyncio.run(main())",
    "collections": "from collections import *\nprint(Counter(''.join(words)).most_common(4), deque(numbers, 3), ChainMap({1: 2}, {3: n})[3], OrderedDict(a=n))\n"
    "d = defaultdict(list)\nfor w in words: d[len(w)].append(w)\nprint(dict(d), namedtuple('P', 'x y')(n, m))",
    "itertools": "from itertools import *\nprint([*islice(cycle(words), m + 5)], [*combinations(numbers[:4], 2)], [*accumulate(numbers)], [(k, [*g]) for k, g in groupby(sorted(words, key=len), len)])",
    "functools": "from functools import *\n@lru_cache(None)\ndef fib(k): return k if k < 2 else fib(k - 1) + fib(k - 2)\n"
    "print(fib(n % 90), reduce(lambda a, b: a * b % 97, numbers, 1), fib.cache_info(), partial(pow, 2)(m))\n@singledispatch\ndef h(x): return 'o'\n@h.register\ndef _(x: int): return 'i'\nprint(h(1), h('a'))",
    "heapq and bisect": "import heapq, bisect\nh = [*numbers]\nheapq.heapify(h)\nprint([heapq.heappop(h) for _ in numbers], bisect.bisect(sorted(numbers), n), heapq.nlargest(2, words))",
    "re": "import re\nprint(re.findall(r'[aeiou]+', ' '.join(words)), re.sub(r'(\\w)(\\w)', r'\\2\\1', words[0]), re.split(r'\\s*,\\s*', 'a , b,c'), re.compile('(?P<x>.)', re.I).match('Q').groupdict(), re.I)",
    "json": "import json\ns = json.dumps({'w': words, 'n': n, 'x': [None, True, 1.5]}, ensure_ascii=False, indent=1, sort_keys=True)\nprint(s, json.loads(s)['n'])\ntry: json.loads('{')\nexcept json.JSONDecodeError as e: print(e)",
    "csv": "import csv, sys\nrows = [*csv.reader(open('data.csv', newline=''))]\nprint(rows)\ncsv.writer(sys.stdout).writerows([*rows, words[:3]])",
    "datetime": "from datetime import *\nd = datetime(2000 + n % 40, 1 + m % 12, 3, 4, 5, tzinfo=timezone(timedelta(hours=m % 9)))\nprint(d.isoformat(), d + timedelta(n), d.strftime('%A %d %B %Y %z'), date.fromisoformat('2020-02-29').isocalendar(), datetime.strptime('1 Feb 03', '%d %b %y'))",
    "decimal and fractions": "from decimal import *; from fractions import Fraction as F; import numbers as N\ngetcontext().prec = 20\nprint(Decimal(n) / Decimal(m), F(n, m) + F(1, 3), Decimal('1.10').quantize(Decimal('.1')), isinstance(Decimal(1), N.Number), round(F(n, m), 2))",
    "statistics and math": "import statistics as s, math, cmath\nprint(s.mean(numbers), s.median(numbers), round(s.pstdev(numbers), 9), math.comb(20, m % 20), math.gcd(n, m), math.isqrt(n), cmath.sqrt(-n), math.prod(numbers))",
    "random": "import random\nr = random.Random(n)\nprint(r.random(), r.sample(words, 3), r.randint(1, n), r.gauss(0, 1))\nrandom.seed(m)\nrandom.shuffle(words)\nprint(words, random.choices(numbers, k=3))",
    "dataclasses": "from dataclasses import *\n@dataclass(order=True, frozen=True)\nclass P:\n    x: int\n    y: list = field(default_factory=list, compare=False)\nprint(sorted([P(n), P(m)]), asdict(P(n, [1])), replace(P(n), x=2), fields(P)[0].name, hash(P(1)) == hash(P(1)))",
    "enum": "from enum import *\nclass C(Enum):\n    A = auto()\n    B = 'b'\nclass F(IntFlag):\n    X = 1\n    Y = 2\nprint(list(C), C('b'), F.X | F.Y, F(3), C['A'].value, isinstance(F.X, int))",
    "typing": "from typing import *\nclass P(NamedTuple):\n    x: int\n    y: str = 'k'\nclass T(TypedDict):\n    a: int\ndef f(a: Optional[int], *b: 'str') -> list[int]: ...\nprint(P(n), P(n)._asdict(), T(a=1), get_type_hints(f), get_args(Union[int, str]))",
    "text": "import textwrap, string, difflib, unicodedata\nprint(textwrap.fill(' '.join(words), 30), string.Template('$a!').substitute(a=n), string.ascii_letters[m], [*difflib.unified_diff(words[:3], words[1:4], lineterm='')], unicodedata.name(words[0][0]))",
    "hashes and codes": "import hashlib, base64, zlib, binascii, struct, hmac\nd = ' '.join(words).encode()\nprint(hashlib.sha256(d).hexdigest(), base64.b64encode(d), zlib.crc32(d), zlib.decompress(zlib.compress(d)) == d, struct.pack('>hI', m, n), binascii.hexlify(d[:4]), hmac.new(d, b'k', 'sha1').hexdigest())",
    "array and bytes": "import array\na = array.array('l', numbers)\na.append(n)\nb = bytearray(words[0], 'utf8')\nb[0] ^= 1\nm_ = memoryview(b)\nprint(a, b, m_[:2].tobytes(), int.from_bytes(b[:3], 'big'), bytes.fromhex('ff00'), 'ß'.encode('latin-1'))",
    "tempfile and pathlib": "import tempfile, pathlib\nwith tempfile.TemporaryDirectory() as d:\n    p = pathlib.Path(d) / 'x' / 'y.txt'\n    p.parent.mkdir()\n    p.write_text(words[0])\n    print(p.read_bytes(), p.suffix, p.relative_to(d), sorted(q.name for q in pathlib.Path('.').glob('*.txt')))\nwith tempfile.NamedTemporaryFile('w+') as f:\n    f.write('abc'); f.seek(1); print(f.read())",
    "io and contextlib": "import io, contextlib\nb = io.StringIO()\nwith contextlib.redirect_stdout(b): print(n)\n@contextlib.contextmanager\ndef c():\n    print('in')\n    try: yield m\n    finally: print('out')\nwith c() as x, contextlib.suppress(KeyError): print(x, repr(b.getvalue())); {}[1]",
    "sqlite3": "import sqlite3\nc = sqlite3.connect(':memory:')\nc.execute('create table t (w text, k int)')\nc.executemany('insert into t values (?, ?)', zip(words, numbers))\nprint(c.execute('select w, k from t where k > ? order by k, w', (m,)).fetchall())",
    "logging": "import logging, sys\nlogging.basicConfig(stream=sys.stdout, level='INFO', format='%(levelname)s %(name)s %(message)s')\nlogging.info('n=%d', n)\nlogging.getLogger('x').warning(words[0])\nlogging.debug('no')",
    "unittest": "import unittest\nclass T(unittest.TestCase):\n    def test_a(self): self.assertEqual(n + m, m + n)\n    def test_b(self): self.assertIn(words[0], words)\n    @unittest.skip('no')\n    def test_c(self): pass\nr = unittest.main(exit=False, argv=['x']).result\nprint(r.testsRun, len(r.failures), len(r.skipped))",
    "pickle and copy": "import pickle, copy\nclass A:\n    def __init__(s): s.x = [n]\na = A()\nb = copy.deepcopy(a)\nb.x.append(1)\nprint(a.x, b.x, pickle.loads(pickle.dumps(a)).x, pickle.loads(pickle.dumps({1: (2, words)})) == {1: (2, words)}, copy.copy(a).x is a.x)",
    "calendar and locale": "import calendar, locale, time\nprint(calendar.month(2000 + m % 30, 1 + n % 12), calendar.isleap(2000 + m), time.strftime('%Y', time.gmtime(0)), locale.getpreferredencoding())",
    "ipaddress and uuid": "import ipaddress, uuid, secrets\nprint(ipaddress.ip_network('10.0.0.0/29').num_addresses, [*map(str, ipaddress.ip_network('10.0.0.0/30').hosts())], uuid.uuid5(uuid.NAMESPACE_DNS, words[0]), len(secrets.token_hex(m)), uuid.UUID(int=n))",
    "inspect and traceback": "import inspect, traceback, sys\ndef f(a, *, b=2): return a\nprint(inspect.signature(f), inspect.getsource(f), inspect.isfunction(f))\ntry: 1 / 0\nexcept ZeroDivisionError: print(traceback.format_exc().splitlines()[-1], sys.exc_info()[0])",
    "warnings and gc": "import warnings, gc, weakref\nclass A: pass\na = A()\nr = weakref.ref(a)\ndel a\ngc.collect()\nprint(r())\nwith warnings.catch_warnings(record=True) as w:\n    warnings.simplefilter('always')\n    warnings.warn(words[0])\nprint(w[0].message)\nwarnings.warn('seen', DeprecationWarning)",
    "atexit and signal": "import atexit, signal\natexit.register(print, 'bye', n)\natexit.register(lambda: print('first'))\nsignal.signal(signal.SIGALRM, lambda *_: print('alarm'))\nsignal.raise_signal(signal.SIGALRM)\nprint('main')",
    "recursion": "import sys\nsys.setrecursionlimit(3000)\ndef f(k): return 0 if k == 0 else 1 + f(k - 1)\nprint(f(900 + n % 900))\ntry: f(10 ** 6)\nexcept RecursionError as e: print(e)",
    "globals and main": "print(sorted(k for k in globals()), __name__, __doc__, __spec__)\nif __name__ == '__main__': import __main__; print(__main__.n == n)",
    "big numbers": "print(len(str(n ** 600)), n ** 200 % 10 ** 30, (1 << 3000).bit_length(), int('9' * 300) + 1, round(1e22), 0.1 + 0.2)",
    "graphs": "import heapq\ng = {w: {v: (len(w) * len(v) + n) % 9 + 1 for v in words if v != w} for w in words}\nd, h = {}, [(0, words[0])]\nwhile h:\n    c, w = heapq.heappop(h)\n    if w not in d:\n        d[w] = c\n        for v, k in g[w].items(): heapq.heappush(h, (c + k, v))\nprint(d)",
    "matching": "def f(x):\n    match x:\n        case [a, *b]: return ('list', a, b)\n        case {'k': v}: return ('dict', v)\n        case int() | float() if x > 3: return 'big'\n        case _: return 'other'\nprint([f(x) for x in (numbers, {'k': n}, n, 'q', 1)])",
    "xml and html": "import xml.etree.ElementTree as E, html, urllib.parse as u\nt = E.fromstring('<a><b k=\"1\">x</b></a>')\nprint(t.find('b').attrib, E.tostring(t), html.escape('<&>'), u.quote(words[0]), u.parse_qs('a=1&b=2&a=3'))",
    "compressed files": "import gzip, bz2, lzma, zipfile, io\nd = ' '.join(words).encode() * 5\nprint([len(x.decompress(x.compress(d))) for x in (gzip, bz2, lzma)])\nb = io.BytesIO()\nwith zipfile.ZipFile(b, 'w') as z: z.writestr('a.txt', d)\nprint(zipfile.ZipFile(b).namelist())",
}  # fmt: skip

FILES = {
    "notes.txt": "one\ntwo é\n".encode(),
    "data.csv": b'a,b\r\n1,"x, y"\r\n2,z\r\n',
    "helper.py": b"def double(x):\n    return 2 * x\n",
    "package/__init__.py": b"value = 5\n",
    "package/inner.py": b"name = __name__\n",
}
OWN_QUEUE = {"queue.py": b"def double(x):\n    return 2 * x\n", "own.py": b"from queue import double\n"}


def program(family: str, seed: int) -> Program:
    """The program of a family for a seed."""
    draw = random.Random(f"{family} {seed}")
    words = draw.sample(WORDS, 6)
    numbers = [draw.randint(1, 60) for _ in range(6)]
    names = f"n, m = {draw.randint(2, 10**6)}, {draw.randint(1, 30)}\nwords, numbers = {words}, {numbers}\n"
    end = draw.choice(["\n", "\r\n", "\n\n", "\r", " \n"])
    return Program(
        code=names + FAMILIES[family] + "\n",
        stdin=end.join(draw.choices([*WORDS, "", "1 2 3", "\t"], k=draw.randint(0, 6)))
        + draw.choice(["", end]),
        argv=tuple(draw.choices([*WORDS, "-k", "", "a b", "--", "*"], k=draw.randint(0, 4))),
        files=FILES | (OWN_QUEUE if family == "own queue.py" else {}),
        limits=LIMITS,
        collect=("**",),
    )
