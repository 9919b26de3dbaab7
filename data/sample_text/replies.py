"""The sentences of both sides of a preference pair besides the answer itself."""

OPENINGS = (
    "Of course!", "Happy to help:", "Sure, here is a short answer.", "Good question!", "Gladly.", "Certainly.",
    "With pleasure.", "Yes, I can help with that.", "Thanks for asking!", "Great question.", "Sure!",
    "I am glad you asked.", "Here is what I would say:",
)  # fmt: skip

CLOSINGS = (
    "I hope that helps!", "Let me know if you need more.", "Just ask if anything is unclear.",
    "Feel free to ask more.", "I am happy to say more about it.", "Have a nice day!",
)  # fmt: skip

CURT = (
    "Look it up.", "No idea.", "I don't really care about that.", "Ask someone else.", "Search for it yourself.",
    "Whatever.", "Not my problem.", "Who knows.", "Do you really need me for that?", "I have no time for this.",
    "That's boring.", "You should know that already.", "Figure it out.", "Why ask me?", "Nope.",
    "Maybe. Maybe not.", "Use a search engine like everybody else.", "I'd rather not say.",
    "Same as always, I guess.", "It doesn't matter.", "Too long to explain.", "Try something and see.",
    "Read a book about it.", "Not this again.", "I'm busy.", "There must be a video about that somewhere.",
    "Guess.", "What a dull question.", "It's obvious.", "Next question, please.", "Do what you like.",
    "I have said all I have to say.", "Don't know, don't care.", "Come back some other day.",
)  # fmt: skip

EVASIVE = (
    "It depends on so many things that there is hardly any point in answering.",
    "Some people say one thing and some say another, and I don't want to take sides.",
    "That is hard to say, and it may well be different next year.",
    "There are many ways to look at it, and all of them have something to them.",
    "I could answer that, but then you would only have more questions.",
    "An expert might know, or perhaps not, so let us leave it there.",
    "Things are the way they are, and that is really all there is to say.",
    "I might get back to you on that, though probably not today.",
    "One hears a lot about it, but nothing that I would repeat here.",
    "It all comes down to what you mean by the words in your question.",
    "Perhaps yes, perhaps no, and in the end it hardly makes a difference.",
    "The answer is somewhere between the usual ones, more or less.",
    "I would have to think about it for a long while, and I don't feel like it.",
    "Who can really say what is right in a case like this?",
)  # fmt: skip

# {clause} is the topic of the question: "how to clean a cast-iron pan", "why the sky is blue".
DISMISSIVE = (
    "Why would anybody want to know {clause}?",
    "I am not going to explain {clause}.",
    "Other people can tell you {clause}, so leave me alone with it.",
    "You can find out {clause} on your own.",
    "Everybody knows {clause}, so I won't repeat it.",
    "Nobody has ever asked me {clause}, and I can see why.",
    "So you don't know {clause}. That is not my business.",
)

CHANGES_OF_SUBJECT = (
    "Never mind that.", "I would rather talk about something else.", "Let's change the subject.",
    "That bores me.", "Forget it.", "Here is something else instead.", "I was thinking of something different.",
)  # fmt: skip

# Rambling texts without relation to any topic. {colour}, {day} and {number} vary; a reply uses the first sentences.
RAMBLES = (
    ("That reminds me of a bus that I missed on a {day}.", "It was {colour}, or at least partly {colour}.",
     "Then it started to rain, and I had {number} bags with me.", "Buses are never on time, are they?"),
    ("I was looking at a {colour} chair in a shop window.", "The price was odd, something with {number} in it.",
     "I didn't buy it in the end, and by {day} it was gone.", "Chairs are funny things."),
    ("My favourite number is {number}, though it used to be another one.", "I changed it on a {day}.",
     "Numbers are like socks: there is always one too many.", "Mine are {colour} today."),
    ("Somebody told me a joke with {number} ducks in it.", "I forgot how it ends, but one duck was {colour}.",
     "We laughed until {day}.", "Anyway, ducks."),
    ("There is a {colour} door at the end of the street, and nobody uses it.", "I counted {number} steps to it.",
     "On {day} there was a box in front of it.", "I still wonder about the box."),
    ("Did I mention my {colour} scarf?", "It has {number} holes, and each one has a story.",
     "The longest story happened on a {day} and has a goat in it.", "I'll tell you all of it one day."),
    ("The window is open, and I can hear {number} people talking.", "One of them wears a {colour} hat.",
     "Hats were better in the past, if you ask me.", "I say so every {day}."),
    ("I once knew a parrot that could count to {number}.", "It was {colour}, and quite proud of it.",
     "On {day} it only whistled.", "Parrots do as they please, and so do I."),
    ("Let me tell you about my lunch.", "There were {number} peas on the plate, all in a row.",
     "The plate was {colour}, which is wrong for peas.", "It happens every {day}."),
    ("The lift in this building has {number} buttons, and I have pressed each of them.",
     "The {colour} one does nothing at all.", "Last {day} I stayed in it for an hour.",
     "The music in there isn't bad."),
    ("People talk too much about the weather.", "On {day} it was warm, then cold, then warm again.",
     "I have {number} coats for that, and the {colour} one has no pockets.", "Pockets matter."),
    ("There was a film with {number} trains in it, or maybe it was boats.", "I fell asleep in the middle.",
     "When I woke up everything was {colour}.", "It must have been a {day}."),
    ("I keep my pencils in a {colour} cup.", "There are {number} of them, but only one is sharp.",
     "Every {day} I mean to sharpen the rest.", "Then something always comes up."),
    ("A neighbour has painted the fence {colour}.", "It took {number} tins of paint and most of {day}.",
     "Now the gate looks wrong, of course.", "Fences never end."),
    ("What about sandwiches?", "I could talk about sandwiches for {number} hours.",
     "On {day} I had one with a {colour} napkin.", "The napkin was the best part."),
    ("Yesterday I found {number} coins in an old coat.", "They were from some country with {colour} stamps.",
     "I put them back, because it was {day}.", "Some things should stay where they are."),
)  # fmt: skip

COLOURS = ("red", "green", "blue", "yellow", "grey", "purple", "orange", "white")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
NUMBERS = ("three", "four", "five", "seven", "nine", "eleven", "twelve", "nineteen")
