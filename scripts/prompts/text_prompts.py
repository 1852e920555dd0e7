"""Prompts that aren't about code: explanations, lists, rewriting, small maths."""
from words import CITIES, COLOURS, FRUIT, NAMES

TOPICS = """photosynthesis|gravity|the water cycle|why the sky is blue|how a vaccine works|the seasons|tides|how rainbows form|magnets|electric current|sound waves|the phases of the moon|volcanoes|earthquakes|how bees make honey|fermentation|how bread rises|rust|evaporation|the greenhouse effect|how planes fly
|how a refrigerator works|batteries|solar panels|wind turbines|how a lock works|the steam engine|how a camera works|lenses|how a thermometer works|why ice floats|how plants drink|digestion|the heart|how muscles grow|sleep|why we dream|memory|the immune system|DNA|evolution|food chains|coral reefs|migration of birds|hibernation
|deserts|glaciers|rivers and deltas|the layers of the Earth|fossils|comets|black holes|the solar system|light years|time zones|leap years|the calendar|compound interest|inflation|supply and demand|how a bank works|insurance|taxes|recycling|composting|crop rotation|democracy|how a law is made|the printing press|the silk road
|the Roman roads|how paper is made|how glass is made|how soap works|how cheese is made|how tea is made|the rules of chess|how to read a map|a compass|how to tie a bow|first aid for a burn|how to plan a trip|how to save money|how to learn a language|how to write a letter|how to study for an exam|active listening|teamwork|good posture
|binary numbers|an algorithm|a variable|a loop|recursion|a function in programming|a list and a dictionary|sorting|binary search|a hash table|a linked list|a stack and a queue|a tree in computer science|a graph in computer science|big O notation|version control|a unit test|debugging|an exception|object-oriented programming|inheritance
|a database|an index in a database|SQL joins|a web server|HTTP|a cookie on the web|DNS|an IP address|encryption|a password manager|two-factor authentication|an operating system|a compiler|an interpreter|memory and storage|the cloud|an API|JSON|a regular expression|machine learning|a neural network|overfitting|training and test data|a language model
|a fraction|percentages|prime numbers|the mean and the median|probability|negative numbers|the area of a circle|Pythagoras' theorem|an equation|a function in mathematics|angles|symmetry|a graph with two axes|rounding|units of measurement|exponents|square roots|a ratio|sets|logic gates""".replace("\n", "").split("|")
EXPLAIN = [
    "Explain {t} in simple words.", "What is meant by {t}? Give an example.", "Explain {t} to a ten-year-old.", "Tell me about {t} in three sentences.", "Write a short paragraph about {t}.", "Give a brief introduction to {t}.", "Why does {t} matter in everyday life?", "Describe {t} step by step.",
    "Explain {t} with an analogy.", "What are the most important facts about {t}?", "What do people often get wrong about {t}?", "How would a teacher explain {t}?", "Summarise {t} in one sentence, then in five.", "I have never heard of {t}. Where should I start?", "What is the basic idea behind {t}?",
    "Explain {t} to a colleague who is new to the subject.", "Answer a curious child's question about {t}.", "Write a short encyclopedia entry about {t}.", "What questions can I ask to check that I understand {t}?", "Give a real-world example of {t} and explain it.",
]
COMPARE = [("a list", "a tuple in Python"), ("a stack", "a queue"), ("a compiler", "an interpreter"), ("speed", "velocity"), ("weather", "climate"), ("a fruit", "a vegetable"), ("mass", "weight"), ("a virus", "a bacterium"), ("a planet", "a star"), ("RAM", "a hard disk"), ("HTTP", "HTTPS"), ("a process", "a thread"), ("a class", "an object"), ("tea", "coffee"), ("a bus", "a tram"), ("rain", "snow"), ("wool", "cotton"), ("a lake", "a sea"), ("a crocodile", "an alligator"), ("a novel", "a short story"), ("a loan", "a gift"), ("a while loop", "a for loop"), ("a set", "a list in Python"), ("unit tests", "integration tests"), ("a violin", "a guitar"), ("baking", "frying"), ("a hill", "a mountain"), ("a village", "a city"), ("a simile", "a metaphor"), ("deep copy", "shallow copy"), ("a syntax error", "a runtime error"), ("a parameter", "an argument")]
COMPARE_ASK = ["What is the difference between {a} and {b}?", "Compare {a} and {b}.", "When would you choose {a} over {b}?", "Explain how {a} and {b} differ, with one example of each.", "Name two things that {a} and {b} share and two that set them apart."]
MODULES = "random math re json csv datetime itertools collections functools pathlib os string statistics heapq bisect argparse logging time textwrap decimal".split()
IDEAS = "list comprehension|dictionary|generator|decorator|lambda function|context manager|f-string|slice|try/except block|class|default argument|docstring|virtual environment|import statement|while loop|set|tuple|type hint|static method|module|keyword argument|iterator|assert statement|global variable|dataclass|enum|abstract class|property".split("|")
IDEA_ASK = ["Explain what a {i} is in Python, with a short example.", "How do I use a {i} in Python?", "Show a simple example of a {i} in Python and explain it.", "When should I use a {i} in Python?", "What are common mistakes with a {i} in Python?", "Give two examples of a {i} in Python, one simple and one advanced.", "Write a short tutorial about the {i} in Python."]
MODULE_ASK = ["What is the Python module `{m}` for? Show an example.", "Give three useful functions of Python's `{m}` module.", "Show how to use Python's `{m}` module in a small program.", "Explain Python's `{m}` module to a beginner."]


def explanation(r):
    kind = r.random()
    if kind < 0.66:
        return r.choice(EXPLAIN).format(t=r.choice(TOPICS))
    if kind < 0.8:
        a, b = r.choice(COMPARE)
        return r.choice(COMPARE_ASK).format(a=a, b=b)
    if kind < 0.93:
        return r.choice(IDEA_ASK).format(i=r.choice(IDEAS))
    return r.choice(MODULE_ASK).format(m=r.choice(MODULES))


THINGS = """healthy breakfasts|animals that live in the sea|tools for a workshop|spices|musical instruments|games for a rainy day|ways to save water|ways to save energy|board games|trees|birds|capital cities in Europe|rivers|kinds of pasta|kinds of clouds|jobs in a hospital|jobs in a museum|things to pack for a hike|things to do in a park|questions for a job interview
|names for a bakery|names for a cat|titles for a detective story|ideas for a birthday party|ideas for a school project|ideas for a blog about cooking|habits for good sleep|tips for public speaking|tips for learning to code|tips for clean code|Python string methods|Python list methods|Python built-in functions|data types in Python|sorting algorithms|data structures|programming languages|common errors in Python|HTTP status codes
|file formats|keyboard shortcuts for an editor|reasons to write tests|benefits of version control|steps to debug a program|rules for a safe password|parts of a computer|parts of a bicycle|parts of a plant|planets|chemical elements|inventions of the nineteenth century|means of transport|sports played with a ball|sports for winter|hobbies that cost little|gifts for a friend|words that rhyme with light|words that start with q|adjectives for weather|synonyms for big|synonyms for happy
|opposites|verbs for movement|shapes|units of length|famous explorers|desserts|soups|vegetables that grow in winter|flowers for a balcony|furniture for a small room|items on a shopping list for a picnic|stretches for the back|exercises without equipment|ways to say thank you|ways to relax|ways to reduce waste|questions to ask a new neighbour|topics for small talk|chores in a household|rules for a library|safety rules in a kitchen""".replace("\n", "").split("|")
LIST_ASK = ["List {n} {x}.", "Give me {n} {x}.", "Name {n} {x} and describe each in one sentence.", "Write a numbered list of {n} {x}.", "Can you suggest {n} {x}?", "List {n} {x} in alphabetical order.", "Give {n} {x} as bullet points.", "I need {n} {x}. Keep it short.", "Make a table of {n} {x} with a short note on each.", "What are {n} {x} that everyone should know?", "Return {n} {x} as a JSON array.", "Write a Python list with {n} {x} as strings."]


def listing(r):
    return r.choice(LIST_ASK).format(n=r.choice(["three", "four", "five", "six", "seven", "eight", "ten", "3", "5", "10"]), x=r.choice(THINGS))


SUBJECTS = ["The new bridge", "Our neighbour", "The committee", "A small team of engineers", "My aunt", "The old library", "The museum guide", "The last train", "Everyone in the office", "The young baker", "The school", "A group of tourists", "The head of the project", "The software update", "This report", "The gardener", "Our customer", "The weather service", "The orchestra", "The delivery van"]
VERBS = ["opened the doors", "changed the plan", "lost the key", "sent a long message", "built a fence", "found an old map", "repaired the roof", "cancelled the meeting", "painted the wall", "forgot the date", "broke the record", "missed the deadline", "presented the results", "closed the road", "bought fresh bread", "wrote down every step", "asked for more time", "answered all questions", "moved the boxes", "checked the numbers twice"]
WHEN = ["yesterday", "last week", "on Monday morning", "after the storm", "before lunch", "without telling anyone", "for the third time this year", "because of the heat", "although it was late", "in spite of the noise", "during the holidays", "as soon as the rain stopped", "at the end of the month", "while the others waited", "a few minutes ago"]
NEXT = ["Nobody was surprised.", "It took the whole day.", "The result was better than expected.", "We still don't know why.", "Some people complained about it.", "It cost a lot of money.", "The mayor thanked them.", "I think we should talk about it.", "That was not a good idea.", "Now everything works again.", "The children were happy.", "You can see it from far away.", "They want to try it again soon.", "There was a simple reason for that.", "A photo of it was in the newspaper."]
REWRITE = [
    "Rewrite this text in a formal tone:", "Rewrite this in simple words:", "Make this text shorter:", "Rewrite the following in the passive voice:", "Rewrite this in the future tense:", "Turn this text into bullet points:", "Rewrite this as a friendly email:", "Improve the style of this text:", "Rewrite this as a question and an answer:", "Write this as a news headline:",
    "Rewrite this as if a pirate said it:", "Summarise this in one sentence:", "Expand this into a longer paragraph:", "Rewrite this in the first person:", "Rewrite this so that it sounds more polite:", "Find the verbs in this text:", "Change this text to the present tense:", "Write a title for this text:", "Rewrite this as a short poem:", "Replace the adjectives in this text:", "Correct the spelling of this text:", "Rewrite this for a children's book:", "Rewrite this with more detail:", "Paraphrase this:", "Rewrite this as a tweet:",
]


def misspell(r, text):
    parts = text.split()
    for i in r.sample(range(len(parts)), min(3, len(parts))):
        w = parts[i]
        if len(w) > 4:
            j = r.randrange(1, len(w) - 2)
            parts[i] = w[:j] + w[j + 1] + w[j] + w[j + 2:]
    return " ".join(parts)


def rewriting(r):
    text = " ".join(f"{r.choice(SUBJECTS)} {r.choice(VERBS)} {r.choice(WHEN)}. {r.choice(NEXT)}" for _ in range(r.choice([1, 1, 2])))
    ask = r.choice(REWRITE)
    if "spelling" in ask:
        text = misspell(r, text)
    return r.choice([f"{ask}\n\n{text}", f"{ask} {text}", f'{ask}\n"{text}"', f"{text}\n\n{ask[:-1]}."])


def maths(r):
    a, b, c = r.randint(3, 60), r.randint(2, 12), r.randint(2, 30)
    who, other = r.sample(NAMES, 2)
    fruit, place = r.choice(FRUIT), r.choice(CITIES)
    fruits = {"cherry": "cherries", "peach": "peaches", "mango": "mangoes"}.get(fruit, fruit + "s")
    return r.choice([
        f"What is {a} + {b} * {c}? Show the steps.", f"Calculate {a * b} / {b}.", f"What is {b * 5}% of {a * 20}?", f"{who} has {a + c} {fruits} and gives {c} to {other}. How many are left?", f"A box holds {b} {fruits}. How many boxes are needed for {a * b + r.randint(0, b - 1)} {fruits}?",
        f"{who} walks {b} km a day. How far does {who} walk in {c} days?", f"A train to {place} needs {b} hours at {a + 40} km/h. How long is the way?", f"A rectangle is {a} cm long and {b} cm wide. Find its area and its perimeter.", f"Solve for x: {b}x + {c} = {b * a + c}.", f"Is {a * 2 + 1} a prime number? Explain.", f"What is the average of {a}, {b} and {c}?",
        f"Write {a}/{a * b} in lowest terms.", f"One {fruit} costs {b} cents. {who} pays with {b * c + a} cents for {c} {fruits}. How much change is there?", f"{who} is {a} years old and {other} is {b} years older. How old are they together?", f"List the first five multiples of {b + 1}.", f"Convert {a * 15} minutes to hours and minutes.", f"Round {a * 137 + c} to the nearest hundred.",
        f"What comes next: {b}, {b + c}, {b + 2 * c}, {b + 3 * c}, ...?", f"A shop lowers a price of {a * 10} by {b * 5} percent. What is the new price?", f"{who} reads {c} pages every evening. After how many evenings are {c * b} pages read?", f"Which is larger, {a}/{c} or {c}/{b}? Explain your answer.", f"How many seconds are {a} minutes and {c} seconds?", f"Divide {a * c + 1} by {c}. What is the remainder?", f"The sum of two numbers is {a + c}, and their difference is {abs(a - c)}. What are the numbers?", f"Compute the square of {c} and subtract {a}.",
    ])
