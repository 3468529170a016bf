"""Questions with right answers that are reasoned in a few sentences: what a model that is left
whole finds likely."""

from __future__ import annotations

ANSWERED = (
    (
        "A shop sells pens for 3 dollars each. How much do 7 pens cost?",
        "Each pen costs 3 dollars, and there are 7 pens. To find the total cost, multiply the"
        " price of one pen by the number of pens: 3 * 7 = 21. So 7 pens cost 21 dollars.",
    ),
    (
        "Tom has 12 apples and gives 5 of them to Anna. How many apples does he have left?",
        "Tom starts with 12 apples. He gives 5 apples to Anna, so we subtract 5 from 12: 12 -"
        " 5 = 7. Therefore, Tom has 7 apples left.",
    ),
    (
        "A train travels 60 miles in one hour. How far does it travel in 4 hours?",
        "The train travels 60 miles every hour. In 4 hours it travels 4 times as far, so we "
        "multiply 60 by 4: 60 * 4 = 240. The train travels 240 miles in 4 hours.",
    ),
    (
        "What is the area of a rectangle that is 8 cm long and 5 cm wide?",
        "The area of a rectangle is its length multiplied by its width. The length is 8 cm "
        "and the width is 5 cm, so the area is 8 * 5 = 40 square centimeters.",
    ),
    (
        "How many minutes are there in 3 hours?",
        "There are 60 minutes in one hour. To find the number of minutes in 3 hours, multiply"
        " 60 by 3: 60 * 3 = 180. So there are 180 minutes in 3 hours.",
    ),
    (
        "What is the capital of France, and on which river does it lie?",
        "The capital of France is Paris. The city lies on the river Seine, which flows "
        "through it from the southeast to the northwest before it reaches the English Channel.",
    ),
    (
        "Why do we see lightning before we hear thunder?",
        "We see lightning before we hear thunder because light travels much faster than "
        "sound. The light reaches our eyes almost instantly, while the sound takes several "
        "seconds to travel through the air.",
    ),
    (
        "Why does ice float on water?",
        "Ice floats on water because it is less dense than liquid water. When water freezes, "
        "its molecules form a crystal structure that takes up more space, so the same mass "
        "has a larger volume.",
    ),
    (
        "What do plants need for photosynthesis?",
        "Plants need sunlight, water, and carbon dioxide for photosynthesis. They use the "
        "energy of the sunlight to convert water and carbon dioxide into glucose, and they "
        "release oxygen.",
    ),
    (
        "What causes the seasons on Earth?",
        "The seasons are caused by the tilt of the Earth's axis. As the Earth orbits the Sun,"
        " different parts of the planet receive more direct sunlight at different times of "
        "the year.",
    ),
    (
        "What is the difference between a list and a tuple in Python?",
        "The main difference is that a list is mutable and a tuple is immutable. This means "
        "that you can change the elements of a list after it is created, but you cannot "
        "change the elements of a tuple.",
    ),
    (
        "Write a Python function that adds two numbers.",
        "Here is a Python function that adds two numbers:\n\n```python\ndef add(a, b):\n"
        "    return a + b\n```\n\n"
        "You can call this function with two numbers, and it will return their sum.",
    ),
    (
        "Write a Python function that tells whether a number is even.",
        "Here is a Python function that checks if a number is even:\n\n```python\n"
        "def is_even(n):\n    return n % 2 == 0\n```\n\n"
        "The function returns True if the number is even, and False otherwise.",
    ),
    (
        "What does the len function do in Python?",
        "The len function in Python returns the number of items in an object. For example, it"
        " returns the number of characters in a string, or the number of elements in a list.",
    ),
    (
        "What is a variable in programming?",
        "A variable is a named location in memory that stores a value. The value can be a "
        "number, a string, or another type of data, and it can be changed while the program "
        "is running.",
    ),
    (
        "If today is Friday, what day is it in 3 days?",
        "Today is Friday. One day later is Saturday, two days later is Sunday, and three days"
        " later is Monday. So in 3 days it is Monday.",
    ),
    (
        "Which is larger, 3/4 or 2/3?",
        "To compare the fractions, we find a common denominator, which is 12. Then 3/4 = 9/12"
        " and 2/3 = 8/12. Since 9 is greater than 8, 3/4 is larger than 2/3.",
    ),
    (
        "What is the average of 4, 8 and 12?",
        "To find the average, add the numbers and divide the sum by how many there are. The "
        "sum is 4 + 8 + 12 = 24, and there are 3 numbers. So the average is 24 / 3 = 8.",
    ),
    (
        "How does a vaccine protect the body?",
        "A vaccine teaches the immune system to recognize a virus or a bacterium without "
        "causing the disease. If the body is exposed to it later, the immune system can "
        "respond quickly and prevent illness.",
    ),
    (
        "Who was the first person to walk on the Moon, and when?",
        "The first person to walk on the Moon was Neil Armstrong. He was an American "
        "astronaut, and he stepped onto the surface of the Moon on July 20, 1969, during the "
        "Apollo 11 mission.",
    ),
)
"""Twenty questions, each with its answer."""
