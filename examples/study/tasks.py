"""Two families of problems that are solved in steps, each of which can be checked.

A problem is a number and steps that change it, in a prompt of words. A solution works through the steps, with filler
and with dead ends (a wrong number, "no", and the step again), and ends in the answer. The solutions to learn from are
not all right: some facts are mistaken in most of them, always in the same way, so that even the likeliest words of a
policy that learnt from them are often wrong. Only the answer is rewarded; the steps are checked for the oracle arms.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

Words = list[str]
END = "<end>"
NO = "no"  # takes the last number back


MISTAKEN = 0.75  # share of the solutions to learn from that follow the mistake where there is one
DEAD_END = 0.1


class Step(NamedTuple):
    right: np.ndarray  # right[number before] is the number after
    mistaken: np.ndarray  # the same for most numbers

    def result(self, number: int, rng: np.random.Generator) -> int:
        return int((self.mistaken if rng.random() < MISTAKEN else self.right)[number])


class Problem(NamedTuple):
    prompt: Words
    start: int
    steps: list[Step]

    def answer(self) -> int:
        number = self.start
        for step in self.steps:
            number = int(step.right[number])
        return number


class Task(NamedTuple):
    name: str
    vocabulary: Words
    problem: Callable[[np.random.Generator], Problem]
    solution: Callable[[Problem, np.random.Generator], Words]
    result_words: frozenset[str]  # the number after one of them is the result of a step
    answer_word: str  # and after this one the answer
    response_length: int  # at most
    supervised_updates: int  # to an accuracy of 20 to 50 %

    def check(self, problem: Problem, response: Sequence[str]) -> tuple[bool, list[int]]:
        """Whether the answer is right, and of each word 1 if it is a right step, -1 if a wrong one, else 0."""
        number, step, before, answer = problem.start, 0, None, None
        credit = []
        for previous, word in zip(["", *response[:-1]], response, strict=True):
            right = None
            if word.isdigit() and previous in self.result_words:
                right = step < len(problem.steps) and int(word) == problem.steps[step].right[number]
                before = (number, step, right)
                number, step = int(word), step + 1
            elif word == NO and before is not None:
                number, step, was_right = before
                right, before = not was_right, None
            elif word.isdigit() and previous == self.answer_word:
                answer = int(word)
                right = step == len(problem.steps) and answer == number
            credit.append(0 if right is None else 1 if right else -1)
        return answer == problem.answer() and response[-1] == END, credit


def other(number: int, size: int, rng: np.random.Generator) -> int:
    """A number below `size` that is not this one."""
    return int((number + rng.integers(1, size)) % size)


def words_of(*texts: str) -> Words:
    """Their words, each once, without placeholders."""
    return [word for word in dict.fromkeys(" ".join(texts).split()) if "{" not in word]


# Chained affine maps modulo 41: each step applies one of eight maps, which have to be known by heart.

MODULUS = 41
COEFFICIENTS = [(3, 5), (7, 11), (2, 30), (5, 1), (9, 17), (4, 23), (6, 8), (8, 36)]


def affine(a: int, b: int) -> Step:
    """Two of ten facts are mistaken."""
    number = np.arange(MODULUS)
    right = (a * number + b) % MODULUS
    return Step(right, np.where((number + b) % 10 < 2, (right + a) % MODULUS, right))


MAPS = {f"f{i}": affine(a, b) for i, (a, b) in enumerate(COEFFICIENTS)}
FILLER = ["hm", "so", "well", "ok", "then"]


def chain_problem(rng: np.random.Generator) -> Problem:
    maps = [str(name) for name in rng.choice(list(MAPS), 5, replace=False)]
    start = int(rng.integers(MODULUS))
    return Problem([str(start), *maps, "="], start, [MAPS[name] for name in maps])


def chain_solution(problem: Problem, rng: np.random.Generator) -> Words:
    words, number = [], problem.start
    for name, step in zip(problem.prompt[1:-1], problem.steps, strict=True):
        while rng.random() < 0.3:
            words.append(str(rng.choice(FILLER)))
        result = step.result(number, rng)
        if rng.random() < DEAD_END:
            words += [name, str(other(result, MODULUS, rng)), NO]
        words += [name, str(result)]
        number = result
    return [*words, "answer", str(number), END]


CHAIN = Task(
    name="chain",
    vocabulary=[*map(str, range(MODULUS)), *MAPS, *FILLER, "=", NO, "answer", END],
    problem=chain_problem,
    solution=chain_solution,
    result_words=frozenset(MAPS),
    answer_word="answer",
    response_length=36,
    supervised_updates=1250,
)


# Word problems: somebody has some things, gets and loses some, and how many are left? The mistake in an
# addition is to forget to carry.

LARGEST = 30
NAMES = words_of(
    "anna ben carla david emma felix grace henry iris jack karen leo maria noah olga paul quinn rosa sam tina uma "
    "victor wendy xavier yara zoe alice bruno chloe daniel elena frank gina hugo ingrid jonas kim lars mona nils"
)
THINGS = words_of(
    "apples pears plums figs nuts eggs cakes pies rolls sweets coins stamps cards books pens pencils stones "
    "shells marbles buttons beads balls kites toys dolls boats cars trains bricks tickets flowers roses tulips "
    "seeds leaves feathers candles cups plates spoons bottles jars boxes bags baskets hats scarves socks shirts "
    "rings keys bells maps photos posters letters songs tapes discs badges"
)
ORDER = ("first", "then", "finally")
GAINS = words_of("buys finds gets wins receives collects earns makes borrows picks")
LOSSES = words_of("eats loses sells drops breaks gives donates lends spends throws")
SENTENCES = {
    True: [
        "{order} {name} {verb} {n} , so {x} and {n} are {y} .",
        "{order} with {n} more than {x} there are {y} {things} .",
        "{order} {x} plus {n} equals {y} .",
        "{order} adding {n} to {x} yields {y} .",
        "{order} {n} more than {x} , so {name} holds {y} .",
    ],
    False: [
        "{order} {name} {verb} {n} , so {x} less {n} are {y} .",
        "{order} with {n} fewer than {x} there are {y} {things} .",
        "{order} {x} minus {n} equals {y} .",
        "{order} taking {n} from {x} yields {y} .",
        "{order} {n} fewer than {x} , so {name} holds {y} .",
    ],
}
REMARKS = [
    "let us go on .",
    "okay , next .",
    "now for the next step .",
    "{name} likes {things} .",
    "this is not hard .",
    "we go step by step .",
    "so far so good .",
    "where were we ?",
]


def addition(n: int) -> Step:
    number = np.arange(LARGEST + 1)
    carry = np.maximum((number + n) // 10 - number // 10, 0)
    return Step(*((number + n - 10 * forgotten) % (LARGEST + 1) for forgotten in (0, carry)))


def story_problem(rng: np.random.Generator) -> Problem:
    name, things = str(rng.choice(NAMES)), str(rng.choice(THINGS))
    start = number = int(rng.integers(5, LARGEST - 5))
    prompt, steps = f"{name} has {start} {things} .".split(), []
    for order in ORDER:
        n = int(rng.integers(2, 7))
        gain = number - n < 0 or (number + n <= LARGEST and rng.random() < 0.5)
        verb = str(rng.choice(GAINS if gain else LOSSES))
        prompt += f"{order} {name} {verb} {n} .".split()
        steps.append(addition(n if gain else -n))
        number = int(steps[-1].right[number])
    return Problem([*prompt, *f"how many {things} ?".split()], start, steps)


def story_solution(problem: Problem, rng: np.random.Generator) -> Words:
    name, things, number = problem.prompt[0], problem.prompt[3], problem.start
    words = []
    for i, step in enumerate(problem.steps):
        order, _, verb, n, _ = problem.prompt[5 * (i + 1) : 5 * (i + 2)]
        while rng.random() < 0.25:
            words += str(rng.choice(REMARKS)).format(name=name, things=things).split()
        result = step.result(number, rng)
        dead_end = [other(result, LARGEST + 1, rng)] if rng.random() < DEAD_END else []
        for y in [*dead_end, result]:
            sentence = str(rng.choice(SENTENCES[verb in GAINS]))
            words += sentence.format(order=order, name=name, things=things, verb=verb, n=n, x=number, y=y).split()
            words += f"{NO} , that was wrong .".split() if y != result else []
        number = result
    return [*words, *f"the answer is {number}".split(), END]


STORY = Task(
    name="story",
    vocabulary=words_of(
        *map(str, range(LARGEST + 1)), *NAMES, *THINGS, *GAINS, *LOSSES, *SENTENCES[True], *SENTENCES[False], *REMARKS,
        f"has . {' '.join(ORDER)} how many ? {NO} , that was wrong . the answer is {END}",
    ),
    problem=story_problem,
    solution=story_solution,
    result_words=frozenset(("are", "equals", "yields", "holds")),
    answer_word="is",
    response_length=72,
    supervised_updates=2000,
)  # fmt: skip

TASKS = {task.name: task for task in (CHAIN, STORY)}
