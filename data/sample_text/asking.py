"""Wordings of a topic's question, and sentences to precede the question."""

from data.sample_text.topics import Topic, in_first_person

TASK_FORMS = (
    "How do I {task}?",
    "What is the best way to {task}?",
    "Can you tell me how to {task}?",
    "I would like to {task}. What should I do?",
    "Please explain how to {task}.",
    "Could you give me some advice on how to {task}?",
    "What should I know if I want to {task}?",
    "I am not sure how to {task}. Can you help me?",
)
FACT_FORMS = (
    "{question}",
    "Can you tell me {clause}?",
    "I was wondering {clause}. Do you know?",
    "Please tell me {clause}.",
    "My daughter asked me {clause}. What should I tell her?",
    "For a quiz, I need to know {clause}.",
    "Could you explain to me {clause}?",
    "I have forgotten {clause}. Can you help me?",
)

GREETINGS = ("Hi!", "Hello.", "Good morning.", "Good evening.", "Sorry to bother you.", "Hi there.")
SITUATIONS = {
    "animals": ("My children love animals.", "We visited the zoo last week.", "I watched a film about animals."),
    "arts": ("I am looking for a new hobby.", "I want to spend more time on art.", "We have an arts week."),
    "computers": ("I am not good with computers.", "I bought a new laptop.", "My office is going digital."),
    "cooking": ("I am cooking for friends tonight.", "I am new to cooking.", "I want to cook more at home."),
    "gardening": ("I have a small garden.", "We moved to a house with a garden.", "Plants are my new hobby."),
    "health": ("I want to look after myself better.", "I would like some simple advice on health.",
               "I am taking a first aid course."),
    "history": ("I am reading about the past.", "We talked about history at dinner.", "I have a test on Friday."),
    "home": ("I have just moved into my first flat.", "I like to do things at home myself.",
             "My landlord is slow to answer."),
    "money": ("I want to be more careful with money.", "I have just got my first salary.",
              "Nobody taught me about money."),
    "science": ("My son is curious about nature.", "I watched a science programme last night.",
                "This came up at dinner."),
    "sport": ("I want to be more active this year.", "A friend invited me to a club.", "I am new to sport."),
    "study": ("I am going back to school this year.", "My courses start next week.",
              "I want better marks this term."),
    "travel": ("I am going abroad next month.", "We are planning a family trip.", "I travel a lot for work."),
    "weather_and_earth": ("I like to watch the weather.", "We talked about this in class.",
                          "I saw a report on nature."),
    "work": ("I have a new job in an office.", "I want to sound polite but clear.",
             "Writing is not my strong side."),
}  # fmt: skip

THANKS = ("Thanks!", "Good to know.", "I see.", "That is clear.", "Thank you, that helps.", "Interesting.")


def phrasings(topic: Topic) -> list[str]:
    """The topic's question in eight wordings."""
    if topic.task is not None:
        return [form.format(task=in_first_person(topic.task)) for form in TASK_FORMS]
    return [form.format(question=topic.question, clause=topic.clause) for form in FACT_FORMS]
