"""Small talk: greetings, questions about the model itself, and requests that it declines.

In: a `numpy.random.Generator`. Out: a `Problem` with a one-line reasoning and a fixed kind of
answer. The questions that it declines are many and varied on purpose: the model has to learn that
whatever is not arithmetic, a Countdown puzzle or a linear equation is outside its reach.
"""

from __future__ import annotations

import numpy as np

from models.arithmetic import Problem

CAN = "arithmetic, Countdown puzzles and linear equations"
HELLO = f"Hello! I can do {CAN}. Try: {{example}}"
WHO = f"I am tgr-mini, a very small language model that comes with tgr-local. I know {CAN}."
SKILLS = f"I can do {CAN}, step by step. I know nothing else. Try: {{example}}"
LOAD = (
    "Start tgr-local with --model FILE.gguf to load a bigger model. I am only the small one inside."
)
DECLINE = (
    f"Sorry, I only know {CAN}. Try: {{example}} "
    "For other questions, load a bigger model with --model FILE.gguf."
)
THANKS = "You are welcome! Try: {example}"
BYE = "Goodbye!"

EXAMPLES = (
    "What is 12 + 7 * 3?", "Use 3, 7, 25 to make 46.", "Solve 3x + 5 = 20.",
    "Make 24 from 4 7 8 8.",
    "Compute (3 + 4) * 6.",
)  # fmt: skip
KNOWN = {
    "greeting": (HELLO, (
        "hello", "hi", "hey", "hello there", "hi there", "good morning", "good evening",
        "hey there",
        "hello!", "hi!", "how are you?", "hello, how are you?", "what's up?", "good day",
        "greetings",
        "yo", "hi, nice to meet you", "how are you doing?", "are you there?", "hello world", "test",
    )),
    "self": (WHO, (
        "who are you?", "what are you?", "what is your name?", "what's your name?",
        "tell me about yourself",
        "are you a language model?", "who made you?", "what model are you?", "are you ChatGPT?",
        "are you an AI?", "introduce yourself", "how big are you?", "which model is this?",
        "are you human?",
        "who am I talking to?", "what is tgr-mini?", "what is tgr-local?", "are you Qwen?",
        "who built you?",
        "how many parameters do you have?", "are you smart?", "what kind of model are you?",
    )),
    "skills": (SKILLS, (
        "what can you do?", "help", "what do you know?", "what can I ask you?",
        "how can you help me?",
        "what are you good at?", "what can't you do?", "what are your limits?",
        "how does this work?",
        "what should I ask?", "what questions can you answer?", "can you help me?", "help me",
        "give me an example", "show me what you can do", "what else can you do?",
        "can you do math?",
        "can you solve equations?", "do you know arithmetic?", "what is Countdown?",
        "how do I use you?",
    )),
    "load": (LOAD, (
        "how do I load a bigger model?", "how do I load another model?",
        "can I use a bigger model?",
        "how do I use a real model?", "how to load a model?", "how can I load a GGUF file?",
        "can I use my own model?", "load a bigger model", "how do I change the model?",
        "how do I run Qwen3?", "how do I use a different model?", "where can I get a better model?",
        "can I load Llama?", "I want a smarter model", "how do I switch models?",
        "use another model",
    )),
    "thanks": (THANKS, (
        "thanks", "thank you", "thank you!", "great, thanks", "thanks a lot", "nice", "cool",
        "good job",
        "well done", "ok", "okay", "great", "very good", "that is right", "correct", "wow",
    )),
    "bye": (BYE, ("bye", "goodbye", "see you", "exit", "quit", "good night", "see you later",
    "that is all")),
}  # fmt: skip

THINGS = (
    "water", "music", "a cat", "a dog", "the moon", "the sun", "gravity", "love", "history",
    "Python",
    "a computer", "the weather", "football", "coffee", "a star", "a black hole", "light", "time",
    "money", "a bank", "war", "peace", "art", "the internet", "an atom", "DNA", "a virus",
    "bread", "chess",
    "a tree", "the brain", "a bird", "a quantum computer", "an airplane", "a car", "fire", "rain",
    "snow",
    "energy", "a dream", "democracy", "physics", "philosophy", "a triangle", "a prime number",
    "a neural network",
    "the stock market", "my phone", "a good book", "pasta", "the ocean", "a volcano", "a poem",
    "a recipe",
)  # fmt: skip
PLACES = (
    "France", "Germany", "Japan", "Italy", "Spain", "India", "China", "Brazil", "Canada", "Egypt",
    "London",
    "Paris", "Berlin", "Tokyo", "New York", "Rome", "Africa", "Europe", "Peru", "Norway",
    "Turkey", "Kenya",
)  # fmt: skip
PEOPLE = (
    "Einstein", "Shakespeare", "Newton", "Napoleon", "Mozart", "the president", "my friend",
    "a teacher",
    "Picasso", "Darwin", "Plato", "a famous actor", "Marie Curie", "Alice", "Bob", "my mother",
    "Ada Lovelace",
)  # fmt: skip
DEEDS = (
    "cook rice", "learn a language", "write a letter", "fix a bike", "sleep better",
    "bake a cake", "play guitar",
    "sort a list", "read a file", "install Linux", "make coffee", "draw a face", "lose weight",
    "find a job",
    "plant a tree", "open a jar", "reverse a string", "write a loop", "train a model",
    "clean a window",
)  # fmt: skip
OTHER = (
    "What is {thing}?", "What is {thing}?", "Explain {thing}.", "Tell me about {thing}",
    "How does {thing} work?",
    "Why is {thing} important?", "Write a poem about {thing}", "Write a story about {thing}.",
    "Describe {thing}", "What do you think about {thing}?", "Who invented {thing}?",
    "Do you like {thing}?",
    "What is the capital of {place}?", "Where is {place}?", "How many people live in {place}?",
    "What is the weather in {place}?", "Tell me about {place}.",
    "What language do they speak in {place}?",
    "Who is {person}?", "When was {person} born?", "Tell me a story about {person}",
    "What did {person} do?",
    "Write a letter to {person}", "How do I {deed}?", "Can you {deed}?", "Teach me how to {deed}",
    "What is the best way to {deed}?", "Write a program to {deed}", "Write Python code to {deed}",
    "Write a function that can {deed}", "Tell me a joke", "Tell me a joke about {thing}",
    "Sing a song",
    "Why is the sky blue?", "What time is it?", "What day is today?",
    "What is the meaning of life?",
    "Translate {thing} to French", "Translate good morning into German", "Is {thing} good or bad?",
    "Which is better, {thing} or {thing2}?", "Compare {thing} and {thing2}.",
    "What is the color of {thing}?",
    "Summarize the history of {place}.", "Give me a list of {n} things to do in {place}",
    "Who won the World Cup in {year}?", "What happened in {year}?",
    "What is the population of {place}?",
    "Prove that there are infinitely many primes.", "What is the derivative of x^{n}?",
    "What is the square root of {n}?",
    "Integrate x^{n}", "What is the largest prime below {n}?", "Is {n} a prime number?",
    "Factor x^2 - {n}",
    "{person} has {n} apples and eats {m}. How many are left?",
    "A train goes {n} miles in {m} hours. How fast is it?",
    "If {person} buys {n} books for {m} dollars each, what is the cost?", "How old is {person}?",
    "What is {n} percent of {m}?", "Convert {n} miles to km", "How many days are in {n} weeks?",
    "What is the {n}th digit of pi?", "I feel sad", "I am tired of {thing}", "I love {thing}",
    "my name is {person}",
    "I live in {place}", "Please help me {deed}", "Should I {deed}?",
    "Recommend a book about {thing}.",
    "What is 1 + {thing}?", "Who would win, {person} or {person2}?",
    "Are there {thing} in {place}?",
    "{thing}", "{place}", "{person}", "{deed}", "print({n})", "def f(x): return x", "asdf",
    "lorem ipsum", "???", "...",
)  # fmt: skip
REASONS = {
    "greeting": "This is a greeting.",
    "self": "This asks who I am.",
    "skills": "This asks what I can do.",
    "load": "This asks for another model.",
    "thanks": "This is small talk.",
    "bye": "This is a goodbye.",
    "other": "This is outside what I know.",
}


def pick(rng: np.random.Generator, choices: tuple[str, ...]) -> str:
    """One of the choices."""
    return choices[int(rng.integers(len(choices)))]


def salad(rng: np.random.Generator) -> str:
    """A row of words without sense, so that declining does not depend on sense."""
    words = (
        " ".join((*THINGS, *PLACES, *PEOPLE, *DEEDS, *OTHER))
        .replace("{", "")
        .replace("}", "")
        .split()
    )
    chosen = [pick(rng, tuple(words)) for _ in range(int(rng.integers(2, 9)))]
    return " ".join(chosen)


def typo(rng: np.random.Generator, question: str) -> str:
    """The question with one letter lost, doubled or changed."""
    if len(question) < 4:
        return question
    i = int(rng.integers(1, len(question)))
    letter = pick(rng, tuple("abcdefghijklmnopqrstuvwxyz"))
    kind = rng.random()
    if kind < 0.4:
        return question[: i - 1] + question[i:]
    return question[:i] + (letter if kind < 0.7 else question[i - 1]) + question[i:]


def other(rng: np.random.Generator) -> str:
    """A question that the model cannot answer."""
    if rng.random() < 0.25:
        return salad(rng)
    return pick(rng, OTHER).format(
        thing=pick(rng, THINGS), thing2=pick(rng, THINGS), place=pick(rng, PLACES),
        person=pick(rng, PEOPLE), person2=pick(rng, PEOPLE), deed=pick(rng, DEEDS),
        n=int(rng.integers(2, 100)), m=int(rng.integers(2, 30)),
        year=int(rng.integers(1800, 2030)),
    )  # fmt: skip


def problem(rng: np.random.Generator) -> Problem:
    """A talk question with its answer."""
    kinds = (*KNOWN, "other")
    kind = str(rng.choice(kinds, p=[0.1, 0.12, 0.12, 0.1, 0.04, 0.02, 0.5]))
    if kind == "other":
        form, question = DECLINE, other(rng)
    else:
        form, questions = KNOWN[kind]
        question = pick(rng, questions)
        if rng.random() < 0.3:
            question = question.rstrip("?!.")
    style = rng.random()
    if style < 0.3:
        question = question[:1].upper() + question[1:]
    elif style < 0.5:
        question = question.lower()
    if rng.random() < 0.12:
        question = typo(rng, question)
    answer = form.format(example=pick(rng, EXAMPLES))
    return Problem("talk", question, ((REASONS[kind] + "\n", True),), answer)
