"""Words in classes, for questions such as "Which of these are string instruments, and which are not?"."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LabelTable:
    """A question about the classes of several members, and the members of each class."""

    ask: str  # with {items}
    classes: dict[str, tuple[str, ...]]  # "a string instrument" → members, with their article


TABLES = (
    LabelTable(
        "Say for each instrument whether it is a string, wind, or percussion instrument: {items}.",
        {
            "a string instrument": ("the violin", "the cello", "the harp", "the guitar", "the viola"),
            "a wind instrument": ("the flute", "the trumpet", "the oboe", "the clarinet", "the bassoon"),
            "a percussion instrument": (
                "the drum",
                "the triangle",
                "the xylophone",
                "the tambourine",
                "the gong",
            ),
        },
    ),
    LabelTable(
        "Sort these animals into mammals, birds, and reptiles: {items}.",
        {
            "a mammal": ("the whale", "the bat", "the horse", "the mouse", "the dolphin"),
            "a bird": ("the penguin", "the owl", "the ostrich", "the swan", "the robin"),
            "a reptile": ("the lizard", "the snake", "the crocodile", "the tortoise", "the gecko"),
        },
    ),
    LabelTable(
        "Which of these is a fruit, which a root, and which a leaf vegetable? {items}.",
        {
            "a fruit": ("the pear", "the plum", "the orange", "the cherry", "the mango"),
            "a root": ("the carrot", "the beetroot", "the radish", "the parsnip", "the turnip"),
            "a leaf vegetable": ("spinach", "lettuce", "kale", "chard", "cabbage"),
        },
    ),
    LabelTable(
        "At room temperature, is each of these a solid, a liquid, or a gas? {items}.",
        {
            "a solid": ("iron", "salt", "gold", "sugar", "glass"),
            "a liquid": ("water", "olive oil", "mercury", "vinegar", "milk"),
            "a gas": ("oxygen", "helium", "nitrogen", "hydrogen", "carbon dioxide"),
        },
    ),
    LabelTable(
        "Name the continent of each country: {items}.",
        {
            "in Europe": ("Portugal", "Norway", "Poland", "Greece", "Ireland"),
            "in Africa": ("Kenya", "Morocco", "Ghana", "Senegal", "Botswana"),
            "in South America": ("Peru", "Chile", "Brazil", "Bolivia", "Uruguay"),
            "in Asia": ("Japan", "Vietnam", "India", "Nepal", "Thailand"),
        },
    ),
    LabelTable(
        "Does each of these travel on land, on water, or in the air? {items}.",
        {
            "a land vehicle": ("the tram", "the lorry", "the bicycle", "the bus"),
            "a water vehicle": ("the ferry", "the canoe", "the yacht", "the barge"),
            "an aircraft": ("the helicopter", "the glider", "the airship", "the jet"),
        },
    ),
    LabelTable(
        "Are these words nouns, verbs, or adjectives? {items}.",
        {
            "a noun": ("kitchen", "freedom", "river", "teacher", "honesty"),
            "a verb": ("explain", "arrive", "forget", "belong", "choose"),
            "an adjective": ("quiet", "generous", "wooden", "early", "brave"),
        },
    ),
    LabelTable(
        "Say whether each of these is a planet, a star, or a moon: {items}.",
        {
            "a planet": ("Mars", "Venus", "Saturn", "Neptune"),
            "a star": ("Sirius", "the Sun", "Vega", "Polaris"),
            "a moon": ("Titan", "Europa", "Ganymede", "Phobos"),
        },
    ),
)
