"""`./lab jupyter` as a learner meets it: notebook 00 open, no question, and only notebooks in the list of files."""

from contextlib import ExitStack

from lab import BOUND_S, Lab


def test_it_opens_notebook_00_without_a_question_and_lists_the_notebooks_alone(tmp_path, browser):
    with ExitStack() as stack:
        lab = stack.enter_context(LabAsLearnersStartIt(tmp_path / "lab"))
        page = stack.enter_context(browser.new_context()).new_page()
        page.set_default_timeout(1000 * BOUND_S)
        page.goto(f"{lab.url}/?token={lab.token}")
        page.wait_for_selector(".jp-RenderedMarkdown >> text=A model that answers")
        assert page.url.split("?")[0].endswith("/lab/tree/00_start_here.ipynb")
        assert page.locator(".jp-Launcher").count() == 0
        page.wait_for_selector(".jp-DirListing-item")
        names = page.locator(".jp-DirListing-itemText").all_inner_texts()
        assert "00_start_here.ipynb" in names and "solved" in names
        assert all(name == "solved" or name.endswith(".ipynb") for name in names), names
        # a question would come with the notifications, which are asked for when the application is restored
        page.wait_for_function("() => window.jupyterapp.restored.then(() => true)")
        page.wait_for_load_state("networkidle")
        assert page.locator(".Toastify__toast").all_inner_texts() == []


class LabAsLearnersStartIt(Lab):
    """The command `aligner jupyter`, with a HOME of its own."""

    def __enter__(self):
        return self.start("aligner_lib jupyter")
