"""The yardstick of the tests: what a mutant is, and that a draw is the same again."""

import pytest

from benchmarks import mutants
from benchmarks.mutants import MutantVerdict, draw
from benchmarks.mutations import MISTAKES, Mutant, mutants_of, planted


def changes(source: str) -> set[tuple[str, str]]:
    """Each mutant of a source: the mistake and the whole source with it."""
    return {(mutant.mistake, planted(source, mutant)) for mutant in mutants_of("m.py", source)}


@pytest.mark.parametrize(
    ("mistake", "source", "mutant"),
    [
        ("sign", "a + b", "(a - b)"),
        ("sign", "f(-a)", "f((a))"),
        ("unit", "a * b", "(a / b)"),
        ("unit", "x.mean(0)", "(x.sum(0))"),
        ("off by one", "x[1:n]", "(x[2:n])"),
        ("off by one", "range(3)", "(range(4))"),
        ("comparison", "a <= b", "(a < b)"),
        ("mask", "loss * mask", "(loss)"),
        ("mask", "if not ended: stop", "if (ended): stop"),
        ("dropped argument", "f(a, scale=s)", "(f(a))"),
        ("swapped", "kl(p, q)", "(kl(q, p))"),
        ("swapped", "def f(): return a, b", "def f(): return (b, a)"),
        ("flag", "f(keepdim=True)", "(f(keepdim=False))"),
    ],
)
def test_each_mistake_changes_one_expression(mistake, source, mutant):
    assert (mistake, mutant) in changes(source)


def test_texts_paths_and_messages_are_left_alone():
    for source in (
        "'a' + b",
        "folder / name",
        "raise ValueError(f'{a + b}')",
        "x: int = 3",
        "isinstance(a, b)",
    ):
        assert changes(source) == set(), source


def test_a_draw_takes_every_mistake_equally_often_and_is_the_same_again(tmp_path):
    room = tmp_path / "data"
    room.mkdir()
    lines = "a + b", "x[1]", "a < b", "not a", "f(k=v)", "g(a, b)", "h(k=True)", "x.mean()"
    (room / "m.py").write_text("\n".join(line for line in lines for _ in range(5)) + "\n")
    drawn = draw(16, seed=3, root=tmp_path)
    assert drawn == draw(16, seed=3, root=tmp_path) != draw(16, seed=4, root=tmp_path)
    assert len({mutant.line for mutant in drawn}) == 16
    counts = {mistake: sum(mutant.mistake == mistake for mutant in drawn) for mistake in MISTAKES}
    assert set(counts.values()) <= {1, 2, 3}


def test_verdicts_are_kept_between_runs(tmp_path, monkeypatch, capsys):
    mutant = Mutant("sign", "data/m.py", 1, 0, "a + b", "(a - b)")
    tried = []

    def try_out(mutant, seconds, first):
        tried.append((seconds, first))
        return MutantVerdict(mutant, "caught", 2.0, "t")

    monkeypatch.setattr(mutants, "draw", lambda count, seed: [mutant])
    monkeypatch.setattr(mutants, "_changes", lambda: "")
    monkeypatch.setattr(mutants, "try_out", try_out)
    for _ in range(2):
        mutants.main(["--json", str(tmp_path / "verdicts.json"), "--minutes", "3"])
    assert tried == [(180, "")]
    assert capsys.readouterr().out.count("1 of 1 = 1.00") == 2


def test_mutants_of_an_earlier_record_are_found_again_nearest_to_their_earlier_line(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/m.py").write_text("x = a + b\n\n\nz = a + b\n")
    places = ("data/m.py", 3, "a + b"), ("data/m.py", 2, "a + c"), ("data/gone.py", 1, "a + b")
    earlier = [
        Mutant("sign", file, line, 4, text, f"({text.replace('+', '-')})") for file, line, text in places
    ]
    verdicts = [MutantVerdict(mutant, "caught", 2.0, "tests/test_m.py::test_sum") for mutant in earlier]
    now = Mutant("sign", "data/m.py", 4, 4, "a + b", "(a - b)")
    assert mutants.found_again(verdicts, tmp_path) == {now: "tests/test_m.py"}
