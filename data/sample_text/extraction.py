"""Short notices with gaps, and questions with answers in the notices."""

from dataclasses import dataclass

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
HOURS = ("eight", "nine", "ten", "eleven", "two", "three", "four", "five")
NUMBERS = ("four", "six", "seven", "nine", "twelve", "fifteen", "eighteen", "twenty")
MONTHS = ("March", "April", "May", "June", "September", "October")


@dataclass(frozen=True)
class Notice:
    """A context and its questions. {day}, {hour}, {number} and {month} have the same values in the context, questions and
    answers."""

    context: str
    questions: tuple[tuple[str, str], ...]  # question, answer


NOTICES = (
    Notice(
        "The town library will be closed for repairs from {month}. Until then it opens at {hour} o'clock, and "
        "readers may borrow up to {number} books at a time. The reading room stays shut on {day}.",
        (
            ("How many books may a reader borrow?", "A reader may borrow up to {number} books at a time."),
            ("On which day is the reading room shut?", "The reading room is shut on {day}."),
            ("When does the library close for repairs?", "The library closes for repairs in {month}."),
        ),
    ),
    Notice(
        "The choir is looking for new voices. Rehearsals take place every {day} at {hour} o'clock in the school "
        "hall. The choir has {number} members at present and will give its next concert in {month}.",
        (
            ("When does the choir rehearse?", "The choir rehearses every {day} at {hour} o'clock."),
            ("In which month is the next concert?", "The next concert of the choir is in {month}."),
            ("How many members does the choir have?", "The choir has {number} members at present."),
        ),
    ),
    Notice(
        "The plumber will come on {day} at {hour} o'clock to check the pipes in flat {number}. Please clear the "
        "space under the sink. The water will be off for about two hours.",
        (
            ("Which flat will the plumber visit?", "The plumber will visit flat {number}."),
            ("What should be cleared before the visit?", "The space under the sink should be cleared."),
            ("When will the plumber come?", "The plumber will come on {day} at {hour} o'clock."),
        ),
    ),
    Notice(
        "The ferry to the island leaves at {hour} o'clock and takes {number} minutes. Bicycles travel free of "
        "charge. There is no service on {day}, and a new timetable begins in {month}.",
        (
            ("How long does the ferry take?", "The ferry takes {number} minutes."),
            ("On which day is there no ferry?", "There is no ferry on {day}."),
            ("What travels free of charge on the ferry?", "Bicycles travel free of charge on the ferry."),
        ),
    ),
    Notice(
        "The chess club meets in the café by the station. Each {day} evening it sets up {number} boards, and "
        "beginners get a free lesson before the games. The yearly tournament is held in {month}.",
        (
            ("Where does the chess club meet?", "The chess club meets in the café by the station."),
            ("How many boards does the club set up?", "The club sets up {number} boards."),
            ("When is the tournament held?", "The tournament is held in {month}."),
        ),
    ),
    Notice(
        "The farm sells apples, honey, and eggs at its gate. It opens at {hour} o'clock every {day}. A basket of "
        "apples costs {number} euros, and the next farm fair is in {month}.",
        (
            ("What does the farm sell?", "The farm sells apples, honey, and eggs."),
            ("How much does a basket of apples cost?", "A basket of apples costs {number} euros."),
            ("On which day does the farm open?", "The farm opens every {day}."),
        ),
    ),
    Notice(
        "The swimming course for adults starts in {month}. It has {number} lessons, always on {day} at {hour} "
        "o'clock. Bring a towel and a lock for the locker; goggles can be borrowed at the desk.",
        (
            ("How many lessons does the course have?", "The swimming course has {number} lessons."),
            ("What can be borrowed at the desk?", "Goggles can be borrowed at the desk."),
            ("In which month does the course start?", "The swimming course starts in {month}."),
        ),
    ),
    Notice(
        "A grey umbrella was left in room {number} after the talk on {day}. The owner can collect it at the front "
        "desk, which is open until {hour} o'clock. Unclaimed things go to charity in {month}.",
        (
            ("What was left in the room?", "A grey umbrella was left in room {number}."),
            ("Where can the owner collect it?", "The owner can collect the umbrella at the front desk."),
            ("What happens to unclaimed things?", "Unclaimed things go to charity in {month}."),
        ),
    ),
)
