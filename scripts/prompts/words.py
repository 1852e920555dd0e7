"""Word lists and small random values shared by the prompt families."""

NAMES = """Ada Amir Anya Bela Bruno Carla Chen Dario Dora Elif Emil Fatou Felix Gita Hana Hugo Ines Ivan Jonas Kaya Lena
Luca Mara Milo Nadia Nils Olga Omar Petra Quinn Rafi Rosa Sami Selma Tara Theo Uma Vera Wen Yara Zoe""".split()

WORDS = """apple river stone lamp cloud garden window pepper music silver tiger orange bridge candle forest pencil rocket
island button carpet dragon engine flower guitar hammer jacket kettle ladder marble needle ocean pillow quartz ribbon
saddle tunnel umbrella valley walnut yellow zebra anchor basket cactus desert ember falcon glacier harbor igloo jungle
koala lemon meadow nectar otter parrot queen radar salmon temple urban velvet willow yogurt level noon civic kayak
banana cocoa mammal pool tree book keen moon""".split()

FRUIT = "apple banana cherry grape kiwi lemon mango melon orange papaya peach pear plum".split()
CITIES = "Oslo Lima Cairo Kyoto Porto Quito Accra Delhi Turin Basel Dakar Hanoi Perth Riga".split()
TEAMS = "sales design support finance research legal kitchen garden".split()
COLOURS = "red green blue amber teal violet black white grey pink".split()

SENTENCES = [
    "the cat sat by the door", "a small boat crossed the wide lake", "rain fell all night", "we bought bread and cheese",
    "every train was late today", "She sells old maps", "My brother paints in the garage", "two birds sang at dawn",
    "the quick test passed", "Nobody read the long letter", "bright stars over the hill", "keep calm and write code",
    "snow covered the quiet road", "tea or coffee", "the map of the old town", "he said yes and then no",
]


def ints(r, low=-9, high=20, least=3, most=7):
    """A short list of integers."""
    return [r.randint(low, high) for _ in range(r.randint(least, most))]


def floats(r, low=0, high=20, least=3, most=5):
    """A short list of numbers with one decimal."""
    return [r.randint(low * 10, high * 10) / 10 for _ in range(r.randint(least, most))]


def words(r, least=3, most=6):
    """A short list of words, now and then with a repeat or a capital."""
    out = [r.choice(WORDS) for _ in range(r.randint(least, most))]
    if r.random() < 0.3:
        out[0] = out[0].capitalize()
    if r.random() < 0.3:
        out[-1] = out[0]
    return out


def sentence(r):
    """A short sentence without a full stop."""
    return r.choice(SENTENCES) if r.random() < 0.5 else " ".join(words(r, 3, 5))


def matrix(r, rows=None, cols=None, low=-4, high=9):
    """A small matrix of integers."""
    rows, cols = rows or r.randint(2, 3), cols or r.randint(2, 3)
    return [[r.randint(low, high) for _ in range(cols)] for _ in range(rows)]


def scores(r, low=0, high=30):
    """A small dictionary from a name to a number."""
    keys = r.sample(r.choice([FRUIT, NAMES, CITIES, COLOURS]), r.randint(2, 4))
    return {k: r.randint(low, high) for k in keys}
