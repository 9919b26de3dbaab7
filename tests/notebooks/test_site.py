"""`aligner site`: links that lead within the site, frames in place of widgets, and the pages that Sphinx makes."""

import re
from pathlib import Path

import pytest
from small_site import ROOT, build

from aligner_lib.errors import UserError
from aligner_lib.tutorial.site import build_site
from aligner_lib.tutorial.site.links import within_site

PAGES = {"README.md", "docs/data.md", "docs/decisions/training.md", "notebooks/solved/05_ppo.ipynb"}


@pytest.mark.parametrize(
    ("place", "text", "expected"),
    [
        ("README.md", "[data](docs/data.md#real-pairs)", "[data](docs/data.md#real-pairs)"),
        ("README.md", "[05](notebooks/05_ppo.ipynb)", "[05](notebooks/solved/05_ppo.ipynb)"),
        ("docs/data.md", "[start](../README.md#results)", "[start](../index.md#results)"),
        ("docs/data.md", "[why](decisions/training.md)", "[why](decisions/training.md)"),
        ("docs/data.md", "[`a test`](../tests/test_x.py), [b](data.md)", "`a test`, [b](data.md)"),
        ("docs/data.md", "[a](https://a.org) [b](#b) [c](mailto:c@d.org)", "[a](https://a.org) [b](#b) [c](mailto:c@d.org)"),
        ("docs/data.md", "![a picture](nowhere.png)", "![a picture](nowhere.png)"),
        ("docs/data.md", "```\n[code](nowhere.md)\n```\n[text](nowhere.md)", "```\n[code](nowhere.md)\n```\ntext"),
        ("notebooks/solved/05_ppo.ipynb", "[how](../../docs/data.md)", "[how](../../docs/data.md)"),
    ],
)  # fmt: skip
def test_links_lead_to_pages_or_become_text(place, text, expected):
    assert within_site(text, place, PAGES) == expected


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    return build(tmp_path_factory.mktemp("site"))


def test_the_site_has_the_course_the_docs_and_frames(site):
    page = (site / "notebooks" / "solved" / "05_ppo.html").read_text()
    assert re.findall(r'src="([^"]*_static/pages/[^"]*)"', page) == [
        "../../_static/pages/ppo-drawn.html",
        "../../_static/pages/quiz-05.html",
    ]
    hunt = (site / "notebooks" / "solved" / "10_bug_hunt.html").read_text()
    assert re.findall(r'src="[^"]*_static/pages/([^"]*)"', hunt) == [
        "hunt-01-and-hunt-healthy-1-and-hunt-healthy-2.html",
        "quiz-hunt-01.html",
    ]
    assert "<b>static</b>" in page and "printed" in page and "nothing without a kernel" not in page
    assert "<math" in page and 'href="../../docs/data.html"' in page and "tests/pages.py" not in page
    assert (site / "index.html").exists() and (site / "docs" / "decisions" / "training.html").exists()
    solved = (ROOT / "notebooks" / "solved").glob("[0-9]*.ipynb")
    pages = (site / "notebooks" / "solved").glob("*.html")
    assert {page.stem for page in pages} == {notebook.stem for notebook in solved}


def test_no_place_of_this_machine_is_in_the_site(site):
    places = (str(site.parent), str(ROOT), str(Path.home()))
    for path in site.rglob("*"):
        if path.suffix in (".html", ".js", ".ipynb", ".pickle", ".doctree"):
            text = path.read_bytes().decode(errors="replace")
            assert not [place for place in places if place in text], path
    assert "runs/tutorial/data is formatted" in (site / "notebooks" / "solved" / "05_ppo.html").read_text()


def test_a_folder_without_notebooks_is_refused(tmp_path):
    pytest.importorskip("myst_nb", reason="`./lab test` installs Sphinx")
    with pytest.raises(UserError, match="has no executed notebooks"):
        build_site.build(ROOT, tmp_path, tmp_path / "out", None, None)
    with pytest.raises(UserError, match="`aligner tutorial` makes a tutorial"):
        build_site.newest_tutorial(tmp_path)


def test_a_link_without_a_target_ends_it(tmp_path):
    pytest.importorskip("myst_nb", reason="`./lab test` installs Sphinx")
    (tmp_path / "conf.py").write_text(
        (build_site.HERE / "sphinx_conf.py").read_text().replace('["static"]', "[]")
    )
    (tmp_path / "index.md").write_text("# Title\n\n[a](#no-such-heading)\n")
    with pytest.raises(UserError, match="no-such-heading"):
        build_site._run_sphinx(tmp_path, tmp_path / "out", tmp_path / "doctrees")
