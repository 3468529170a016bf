"""Families of small classes. A test builds one, calls methods, and compares a result."""

from tgr_local.lab.eval.bugs.family import Family

CLASSES = (
    Family(
        "stack",
        (
            """
class {f}:
    def __init__(self):
        self.{attr} = []

    def push(self, {x}):
        self.{attr}.append({x})

    def pop(self):
        return self.{attr}.pop()

    def size(self):
        return len(self.{attr})
""",
            """
class {f}:
    def __init__(self):
        self.{attr} = []

    def push(self, {x}):
        self.{attr}.append({x})

    def top(self):
        return self.{attr}[-1]

    def is_empty(self):
        return len(self.{attr}) == 0
""",
        ),
        "",
        "",
        {"f": ("Stack", "Pile", "History", "Tower", "Shelf")},
        changes=("push int",),
        asks=("pop", "size", "top", "is_empty"),
    ),
    Family(
        "queue",
        (
            """
class {f}:
    def __init__(self):
        self.{attr} = []

    def {put}(self, {x}):
        self.{attr}.append({x})

    def {get}(self):
        if not self.{attr}:
            return None
        return self.{attr}.pop(0)
""",
        ),
        "",
        "",
        {"f": ("Queue", "Line", "Inbox", "Waiting", "Buffer"), "put|get": ("add|next", "put|get")},
        changes=("add int", "put int"),
        asks=("next", "get"),
    ),
    Family(
        "counter",
        (
            """
class {f}:
    def __init__(self, {k}={K1}):
        self.{n} = 0
        self.{k} = {k}

    def step(self):
        self.{n} += {K2}
        return self.{n}

    def is_full(self):
        return self.{n} >= self.{k}
""",
        ),
        "",
        "",
        {"f": ("Counter", "Meter", "Clicker", "Gauge", "Odometer")},
        {"K1": (2, 9), "K2": (1, 4)},
        changes=("step",),
        asks=("step", "is_full"),
    ),
    Family(
        "account",
        (
            """
class {f}:
    def __init__(self, balance=0):
        self.balance = balance

    def deposit(self, {p}):
        self.balance += {p}
        return self.balance

    def withdraw(self, {p}):
        if {p} > self.balance:
            return False
        self.balance -= {p}
        return True
""",
        ),
        "int",
        "",
        {"f": ("Account", "Wallet", "Purse", "Bank", "Card", "Budget")},
        changes=("deposit int", "withdraw small"),
        asks=("deposit small", "withdraw int", "=balance"),
    ),
    Family(
        "rectangle",
        (
            """
class {f}:
    def __init__(self, {a}, {b}):
        self.{a} = {a}
        self.{b} = {b}

    def area(self):
        return self.{a} * self.{b}

    def border(self):
        return 2 * (self.{a} + self.{b})

    def is_square(self):
        return self.{a} == self.{b}
""",
        ),
        "pos pos",
        "",
        {
            "f": ("Rectangle", "Box", "Field", "Room", "Sheet"),
            "a|b": ("width|height", "w|h", "long|wide", "x|y"),
        },
        asks=("area", "border", "is_square"),
    ),
    Family(
        "point",
        (
            """
class {f}:
    def __init__(self, x, y):
        self.x = x
        self.y = y

    def move(self, dx, dy):
        self.x += dx
        self.y += dy

    def distance(self):
        return abs(self.x) + abs(self.y)
""",
        ),
        "any any",
        "",
        {"f": ("Point", "Robot", "Pawn", "Cursor", "Ship")},
        changes=("move small any",),
        asks=("distance", "=x", "=y"),
    ),
    Family(
        "inventory",
        (
            """
class {f}:
    def __init__(self):
        self.{d} = {}

    def add(self, {key}, {p}):
        self.{d}[{key}] = self.{d}.get({key}, 0) + {p}

    def total(self):
        return sum(self.{d}.values())

    def has(self, {key}):
        return self.{d}.get({key}, 0) > 0
""",
        ),
        "",
        "",
        {"f": ("Inventory", "Basket", "Cart", "Store", "Pantry")},
        changes=("add few small",),
        asks=("total", "has few"),
    ),
    Family(
        "temperature",
        (
            """
class {f}:
    def __init__(self):
        self.{xs} = []

    def add(self, {x}):
        self.{xs}.append({x})

    def highest(self):
        return max(self.{xs})

    def mean(self):
        return sum(self.{xs}) // len(self.{xs})

    def above(self, {k}):
        return len([{x} for {x} in self.{xs} if {x} > {k}])
""",
        ),
        "",
        "",
        {"f": ("Log", "Recorder", "Station", "Sensor", "Series")},
        changes=("add int",),
        asks=("highest", "mean", "above int"),
    ),
    Family(
        "switch",
        (
            """
class {f}:
    def __init__(self):
        self.{state} = False
        self.{n} = 0

    def press(self):
        self.{state} = not self.{state}
        self.{n} += 1
        return self.{state}

    def presses(self):
        return self.{n}
""",
        ),
        "",
        "",
        {
            "f": ("Switch", "Button", "Lamp", "Toggle", "Relay"),
            "state": ("on", "active", "is_on", "lit"),
        },
        changes=("press",),
        asks=("press", "presses"),
    ),
)
