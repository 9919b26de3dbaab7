"""`./lab test --since REF`: the test files that a branch's changes can reach, and how many imports lie in between.

A file reaches what it imports, anywhere in it, and what it names in a string: so are other processes started
(`-m aligner_lib`, "from cluster import Job", "trainer.py"). Of a conftest.py it reaches the fixtures that it asks for.
What isn't Python is read by the package that it lies in, or by its READERS; of anything else, every test is a reader.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

from import_graph import ROOT, modules, named

READERS = {
    "docs/": [
        "tests/cluster/test_resources.py",
        "tests/unit/test_exercises.py",
        "tests/unit/test_figures.py",
        "tests/unit/test_language.py",
    ],
    "tests/extending/": ["tests/extending/test_extending.py"],
    "notebooks/": [
        "tests/notebooks/test_later_notebooks.py",
        "tests/notebooks/test_notebooks.py",
        "tests/slurm/test_slurm_notebooks.py",
        "tests/unit/test_exercises.py",
        "tests/widgets/test_shipped_recordings.py",
    ],
    "lab": ["tests/unit/test_lab.py", "tests/unit/test_torch_builds.py"],
    "README.md": ["tests/unit/test_figures.py", "tests/unit/test_language.py"],
    "CONTRIBUTING.md": ["tests/unit/test_figures.py", "tests/unit/test_language.py"],
    "CHANGELOG.md": [],
    "THIRD_PARTY_NOTICES.md": [],
    "LICENSE": [],
    "environment.yml": [],
    ".gitignore": [],
    ".ci/": [],
}
READ_EVERYTHING = {
    f"tests/unit/test_{name}.py"
    for name in ("docs", "imports", "migration", "named_settings", "parity", "setup")
}
BY_NAME = {
    "aligner_lib/config/kinds.py": r"aligner_lib/kinds/\w+/settings\.py",
    "aligner_lib/rollouts/environments/registry.py": r"aligner_lib/rollouts/environments/\w+\.py",
    "aligner_lib/tutorial/exercises/registry.py": r"aligner_lib/tutorial/exercises/notebook_\w+\.py",
}
"""By registry: the files that the registry imports by names that it puts together."""
CODE = re.compile(r"\b(?:import|from|-m) ([\w.]+)(?: import (\w+))?|\b(\w+(?:\.\w+)+)")


def affected(changed: set[str]) -> tuple[dict[str, int], str | None]:
    """The test files that a change of these files can reach, with the number of imports in between; where that is every one,
    the file that it is for."""
    everything = {path for path in sources() if Path(path).name.startswith("test_")}
    causes, readers = set(), dict.fromkeys(READ_EVERYTHING, 1) if changed else {}
    for path in changed:
        by_name = next((files for name, files in READERS.items() if path.startswith(name)), None)
        if path in everything or re.fullmatch(r"tests/.*conftest\.py", path):
            folder = path.removesuffix("conftest.py")
            readers |= {test: 0 for test in everything if test.startswith(folder)}
        elif path in sources() and not path.startswith("notebooks/"):
            causes.add(path)
        elif by_name is not None:
            readers |= dict.fromkeys(by_name, 0)
        elif package := _package_of(path):
            causes |= {source for source in sources() if Path(source).parent == package}
        elif not path.startswith("tests/") or not Path(path).name.startswith("test_"):
            return dict.fromkeys(everything, 0), path
    distances = _distances(causes, everything) if causes else {}
    return {test: distances[test] for test in everything & distances.keys()} | readers, None


def changed_since(ref: str) -> set[str]:
    """Files that a branch has changed since it left a commit's history, committed or not, by their paths in the repository.

    Raises ValueError for an unknown commit.
    """
    left = _git("merge-base", ref, "HEAD").strip()
    lists = (
        ["diff", "--name-only", "--no-renames", left, "--"],
        ["ls-files", "--others", "--exclude-standard"],
    )
    return {path for words in lists for path in _git(*words).splitlines()}


def _git(*words: str) -> str:
    done = subprocess.run(
        ["git", "-c", "core.quotePath=false", *words], cwd=ROOT, capture_output=True, text=True
    )
    if done.returncode:
        # git says nothing about commits of unrelated histories
        reason, *_ = done.stderr.strip().splitlines() or [f"`git {' '.join(words)}` finds no commit"]
        raise ValueError(f"--since: {reason}")
    return done.stdout


def _package_of(path: str) -> Path | None:
    """The nearest package around a file that is data, or that is gone."""
    return next((above for above in Path(path).parents if f"{above}/__init__.py" in sources()), None)


# ---- who reaches whom -----------------------------------------------------------------------------------------------


@cache
def sources() -> dict[str, str]:
    """Every Python file of the project, and the name it is imported by."""
    names = {str(path.relative_to(ROOT)): name for name, path in modules().items()}
    for path in sorted((ROOT / "benchmarks").glob("*.py")):
        name = f"benchmarks.{path.stem}".removesuffix(".__init__")
        names[str(path.relative_to(ROOT))] = name
    for room in ("tests", "notebooks"):  # whose folders are on the path: their files are modules of one word
        names |= {str(path.relative_to(ROOT)): path.stem for path in sorted((ROOT / room).rglob("*.py"))}
    return names


@cache
def _paths() -> dict[str, str]:
    """A module's file by the name that it is imported by."""
    return {name: path for path, name in sources().items() if name != "conftest"}


@cache
def _scripts() -> dict[str, list[str]]:
    """Files by the name that they are started by."""
    by_name = defaultdict(list)
    for path in sources():
        by_name[Path(path).name].append(path)
    return {name: paths for name, paths in by_name.items() if name != "__init__.py"}


def reached(*paths: str) -> set[str]:
    """All the files, and fixtures, that these files reach."""
    seen, ahead = set(), set(paths)
    while ahead:
        node = ahead.pop()
        seen.add(node)
        ahead |= _next(node) - seen
    return seen


def _distances(causes: set[str], tests: set[str]) -> dict[str, int]:
    """By file, and fixture, on a way from a test to a cause: how many imports lie between it and the nearest cause."""
    users = defaultdict(set)
    for node in reached(*tests):
        for used in _next(node):
            users[used].add(node)
    distances, ahead, steps = {}, causes, 0
    while ahead:
        distances |= dict.fromkeys(ahead, steps)
        ahead = set().union(*(users[node] for node in ahead)) - distances.keys()
        steps += 1
    return distances


@cache
def _next(node: str) -> frozenset[str]:
    path, _, fixture = node.partition("::")
    if fixture:
        return frozenset(_fixtures(path)[fixture])
    nodes = list(ast.walk(_tree(path)))
    files = set(_mentioned(nodes, path))
    if path in BY_NAME:
        files |= {source for source in sources() if re.fullmatch(BY_NAME[path], source)}
    if path in READERS["notebooks/"]:
        files |= {source for source in sources() if source.startswith("notebooks/src/")}
    if path.startswith("tests/"):
        words = _asked_for(nodes)
        for above in Path(path).parents:
            conftest = f"{above}/conftest.py"
            if conftest in sources():
                files |= {f"{conftest}::{name}" for name in _fixtures(conftest).keys() & words}
    return frozenset(files)


@cache
def _fixtures(conftest: str) -> dict[str, set[str]]:
    """By each function of a conftest.py the files and functions that it uses."""
    tree, bound = _tree(conftest), {}
    for node in tree.body:
        for alias in getattr(node, "names", []):
            bound[alias.asname or alias.name.partition(".")[0]] = _files(*named(node, ""))
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    used = {}
    for name, function in functions.items():
        nodes = list(ast.walk(function))
        words = _asked_for(nodes) | {node.id for node in nodes if isinstance(node, ast.Name)}
        used[name] = set(_mentioned(nodes, conftest)).union(*(bound[word] for word in bound.keys() & words))
        for above in Path(conftest).parents:  # of its own name it asks the one above for
            there = f"{above}/conftest.py"
            if there in sources():
                known = functions if there == conftest else _fixtures(there)
                used[name] |= {f"{there}::{word}" for word in known.keys() & words - {name}}
    return used


def _asked_for(nodes: list[ast.AST]) -> set[str]:
    """The names that could be fixtures': of arguments, and in strings (`usefixtures`)."""
    return {node.arg for node in nodes if isinstance(node, ast.arg)} | set(_strings(nodes))


def _mentioned(nodes: list[ast.AST], path: str) -> Iterator[str]:
    """The files of the modules that a source imports, or names in a string."""
    name = sources()[path]
    package = name if path.endswith("__init__.py") else name.rpartition(".")[0]
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            source = next(named(node, package))
            yield from _files(*(f"{source}.{alias.name}" for alias in node.names))
        yield from _files(*named(node, package))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield from _lazy_files(node.value.id, node.attr)  # cluster.Job, after `import cluster`
    for text in _strings(nodes):
        named_in_it = _files(*(".".join(filter(None, match)) for match in CODE.findall(text)))
        yield from (
            file for file in named_in_it if not file.startswith("tests/")
        )  # `trainer.devices` is a setting
        yield from _scripts().get(text, ())
    for node in nodes:
        if isinstance(node, ast.List | ast.Tuple):  # a command line
            words = [str(getattr(word, "value", "")) for word in node.elts]
            started = [word for flag, word in pairwise(filter("--".__ne__, words)) if flag == "-m"]
            yield from _files(*started, *(f"{name}.__main__" for name in started))


def _files(*names: str) -> set[str]:
    """The files of these modules, and of the packages that they lie in; a name may go on behind the module's."""
    their_files = set()
    for parts in (name.split(".") for name in names):
        for length in range(1, len(parts) + 1):
            if path := _paths().get(".".join(parts[:length])):
                their_files.add(path)
                their_files |= _lazy_files(".".join(parts[:length]), *parts[length : length + 1])
    return their_files


def _lazy_files(package: str, name: str = "") -> set[str]:
    home = _lazy(_paths().get(package, "")).get(name)
    return _files(f"{package}.{home}") if home else set()


@cache
def _lazy(path: str) -> dict[str, str]:
    """What a package imports at its first use, and the module that has it: {"Job": "job", …}."""
    if not path.endswith("__init__.py"):
        return {}
    pairs = [
        (key, value)
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values)
    ]
    return {
        key.value: value.value
        for key, value in pairs
        if isinstance(key, ast.Constant) and isinstance(value, ast.Constant) and isinstance(value.value, str)
    }


def _strings(nodes: list[ast.AST]) -> Iterator[str]:
    """Every string of a source but its docstrings."""
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


@cache
def _tree(path: str) -> ast.Module:
    return ast.parse((ROOT / path).read_text(), path)
