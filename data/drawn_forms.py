"""Forms whose details are drawn for the prompt, and the values of the details."""

from __future__ import annotations

from data.forms import FORMS

ASKED = ("first_word", "includes", "last_words", "postscript_word", "this_number")
"""The forms of the sample `drawn`. No form is a title. In a data set with requests for titles, one of four reward models also
rewarded unrequested titles."""
NUMBERS = range(2, 60)
STATEMENTS = ("The ", "Your ", '"')
"""A wording with such a beginning is a statement about the answer, not a request. In a data set with statements such as "The
number 8 has to appear in your answer.", policies copied the statements into their answers."""
OPENERS = (
    "Well",
    "Sure",
    "Honestly",
    "First",
    "Yes",
    "Clearly",
    "Briefly",
    "Today",
    "Indeed",
    "Friend",
    "Listen",
    "Gladly",
    "Simply",
    "Normally",
    "Look",
    "Right",
)
TITLES = (
    "Good to know",
    "My answer",
    "In short",
    "For beginners",
    "A small guide",
    "First things first",
    "The short version",
    "One thing at a time",
    "Made simple",
    "What I know",
    "Worth knowing",
    "A quick note",
    "Step by step",
    "Ask and learn",
    "The basics",
    "Plain words",
    "Lesson one",
    "Today's topic",
    "A useful fact",
    "Under a minute",
    "Before you start",
    "From the top",
    "Notes for you",
    "Look closer",
)


def requests(form: str) -> list[str]:
    """The wordings of a form, restricted to requests."""
    return [wording for wording in FORMS[form].wordings if not wording.startswith(STATEMENTS)]
