"""The mistakes that benchmarks/mutants.py plants, and which of them a draw takes."""

import pytest

from benchmarks import mutants
from benchmarks.mutants import draw
from benchmarks.mutations import MISTAKES, mutants_of, planted


def changes(source: str) -> set[tuple[str, str]]:
    """Each mutant of a source: the mistake and the whole source with it."""
    return {(mutant.mistake, planted(source, mutant)) for mutant in mutants_of("m.py", source)}


@pytest.mark.parametrize(
    ("mistake", "source", "mutant"),
    [
        ("sign", "a + b", "(a - b)"),
        ("unit", "a * b", "(a / b)"),
        ("off by one", "x[1:n]", "(x[2:n])"),
        ("comparison", "a <= b", "(a < b)"),
        ("mask", "loss * mask", "(loss)"),
        ("dropped argument", "f(a, scale=s)", "(f(a))"),
        ("swapped", "kl(p, q)", "(kl(q, p))"),
        ("flag", "f(keepdim=True)", "(f(keepdim=False))"),
    ],
)
def test_each_mistake_changes_one_expression(mistake, source, mutant):
    assert (mistake, mutant) in changes(source)


@pytest.mark.parametrize("source", ["'a' + b", "folder / name", "raise ValueError(f'{a + b}')", "x: int = 3"])
def test_texts_paths_and_messages_are_left_alone(source):
    assert changes(source) == set()


def test_a_draw_takes_every_mistake_equally_often_and_is_the_same_again(tmp_path):
    (tmp_path / "data").mkdir()
    lines = "a + b", "x[1]", "a < b", "not a", "f(k=v)", "g(a, b)", "h(k=True)", "x.mean()"
    (tmp_path / "data" / "m.py").write_text("\n".join(lines * 5) + "\n")
    drawn = draw(16, seed=3, root=tmp_path)
    assert drawn == draw(16, seed=3, root=tmp_path) != draw(16, seed=4, root=tmp_path)
    counts = [sum(mutant.mistake == mistake for mutant in drawn) for mistake in MISTAKES]
    assert {*counts} <= {1, 2, 3}


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout with a module and its test, whose conftest.py reads the module's length."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "m.py").write_text("length = 1 + 2\n")
    (tmp_path / "tests" / "conftest.py").write_text("")
    (tmp_path / "tests" / "test_m.py").write_text(
        "# m\nfrom m import length\ndef test(): assert length == 3\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    mutants.check_without_mutant.cache_clear()
    return tmp_path


def verdict_of(checkout) -> mutants.MutantVerdict:
    (mutant,) = (mutant for mutant in mutants_of("m.py", "length = 1 + 2\n") if mutant.mistake == "sign")
    return mutants.try_out(mutant, 60.0)


def test_a_mutant_that_breaks_the_import_of_a_conftest_is_caught_by_that_file(checkout):
    assert verdict_of(checkout).by == "tests/test_m.py::test"
    (checkout / "tests" / "conftest.py").write_text("import m\nassert m.length == 3\n")
    assert (verdict_of(checkout).outcome, verdict_of(checkout).by) == ("caught", "tests/conftest.py")


def test_a_test_that_fails_without_a_mutant_ends_the_benchmark(checkout):
    (checkout / "tests" / "test_m.py").write_text("# m\ndef test(): assert False\n")
    with pytest.raises(SystemExit, match=r"test_m\.py::test fails on this machine without a mutant"):
        verdict_of(checkout)
