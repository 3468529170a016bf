"""Families of functions on whole numbers."""

from tgr_local.lab.eval.bugs.family import Family

NUMBERS = (
    Family(
        "factorial",
        (
            """
def {f}({p}):
    {t} = 1
    for {i} in range(2, {p} + 1):
        {t} *= {i}
    return {t}
""",
            """
def {f}({p}):
    if {p} <= 1:
        return 1
    return {p} * {f}({p} - 1)
""",
        ),
        "small",
        "Return the product of the numbers from 1 to {p}.",
        {"f": ("factorial", "fact", "permutations", "product_to")},
    ),
    Family(
        "sum_to",
        (
            """
def {f}({p}):
    {t} = 0
    for {i} in range(1, {p} + 1):
        {t} += {i}{power}
    return {t}
""",
            """
def {f}({p}):
    if {p} == 0:
        return 0
    return {p}{power} + {f}({p} - 1)
""",
        ),
        "small",
        "Return the sum of the {what} from 1 to {p}.",
        {
            "f|power|what": (
                "sum_to||numbers",
                "triangle||numbers",
                "sum_up_to||numbers",
                "sum_squares| ** 2|squares",
                "square_sum| ** 2|squares",
                "sum_cubes| ** 3|cubes",
            )
        },
    ),
    Family(
        "fibonacci",
        (
            """
def {f}({p}):
    {a}, {b} = 0, 1
    for _ in range({p}):
        {a}, {b} = {b}, {a} + {b}
    return {a}
""",
            """
def {f}({p}):
    if {p} < 2:
        return {p}
    return {f}({p} - 1) + {f}({p} - 2)
""",
        ),
        "small",
        "Return the Fibonacci number {p}.",
        {"f": ("fib", "fibonacci", "nth_fib", "fib_number")},
    ),
    Family(
        "power",
        (
            """
def {f}({q}, {p}):
    {t} = 1
    for _ in range({p}):
        {t} *= {q}
    return {t}
""",
            """
def {f}({q}, {p}):
    if {p} == 0:
        return 1
    return {q} * {f}({q}, {p} - 1)
""",
        ),
        "two small",
        "Return {q} to the power of {p}.",
        {"f": ("power", "pow_int", "raise_to", "to_power")},
    ),
    Family(
        "digit_sum",
        (
            """
def {f}({p}):
    {t} = 0
    while {p} > 0:
        {t} += {p} % 10
        {p} //= 10
    return {t}
""",
            """
def {f}({p}):
    if {p} < 10:
        return {p}
    return {p} % 10 + {f}({p} // 10)
""",
            """
def {f}({p}):
    return sum(int({c}) for {c} in str({p}))
""",
        ),
        "big",
        "Add up the digits of {p}.",
        {"f": ("digit_sum", "sum_digits", "add_digits", "cross_sum")},
    ),
    Family(
        "reverse_number",
        (
            """
def {f}({p}):
    {t} = 0
    while {p} > 0:
        {t} = {t} * 10 + {p} % 10
        {p} //= 10
    return {t}
""",
        ),
        "big",
        "Return {p} with its digits reversed.",
        {"f": ("reverse_number", "reverse_digits", "flip_digits", "mirror_number")},
    ),
    Family(
        "count_digits",
        (
            """
def {f}({p}, {q}):
    {n} = 0
    while {p} > 0:
        if {p} % 10 == {q}:
            {n} += 1
        {p} //= 10
    return {n}
""",
        ),
        "big small",
        "Count the digit {q} in {p}.",
        {"f": ("count_digit", "digit_count", "digits_equal", "how_often")},
    ),
    Family(
        "gcd",
        (
            """
def {f}({a}, {b}):
    while {b} != 0:
        {a}, {b} = {b}, {a} % {b}
    return {a}
""",
            """
def {f}({a}, {b}):
    if {b} == 0:
        return {a}
    return {f}({b}, {a} % {b})
""",
        ),
        "pos pos",
        "Return the greatest common divisor of {a} and {b}.",
        {"f": ("gcd", "greatest_divisor", "common_divisor", "gcf")},
    ),
    Family(
        "is_prime",
        (
            """
def {f}({p}):
    if {p} < 2:
        return False
    for {i} in range(2, {p}):
        if {p} % {i} == 0:
            return False
    return True
""",
            """
def {f}({p}):
    if {p} < 2:
        return False
    {i} = 2
    while {i} * {i} <= {p}:
        if {p} % {i} == 0:
            return False
        {i} += 1
    return True
""",
        ),
        "int",
        "Tell whether {p} is a prime number.",
        {"f": ("is_prime", "prime", "check_prime", "has_no_divisor")},
    ),
    Family(
        "divisors",
        (
            """
def {f}({p}):
    {r} = []
    for {i} in range(1, {p} + 1):
        if {p} % {i} == 0:
            {r}.append({i})
    return {r}
""",
            """
def {f}({p}):
    return [{i} for {i} in range(1, {p} + 1) if {p} % {i} == 0]
""",
        ),
        "pos",
        "Return all divisors of {p}.",
        {"f": ("divisors", "factors", "all_divisors", "find_factors")},
    ),
    Family(
        "clamp",
        (
            """
def {f}({p}, {a}, {b}):
    if {p} < {a}:
        return {a}
    if {p} > {b}:
        return {b}
    return {p}
""",
            """
def {f}({p}, {a}, {b}):
    return max({a}, min({p}, {b}))
""",
        ),
        "any small int",
        "Limit {p} to the range from {a} to {b}.",
        {"f": ("clamp", "clip", "limit_to", "bounded")},
    ),
    Family(
        "in_range",
        (
            """
def {f}({p}, {a}, {b}):
    return {a} <= {p} {cmp} {b}
""",
            """
def {f}({p}, {a}, {b}):
    return {p} >= {a} and {p} {cmp} {b}
""",
        ),
        "small small small",
        "Tell whether {p} is from {a} to {b}{what}.",
        {
            "f|cmp|what": (
                "between|<=|",
                "is_between|<=|",
                "in_range|<|, without {b}",
                "inside|<=|",
                "within|<=|",
            )
        },
    ),
    Family(
        "arithmetic2",
        (
            """
def {f}({a}, {b}):
    return {body}
""",
            """
def {f}({a}, {b}):
    {t} = {body}
    return {t}
""",
        ),
        "pos pos",
        "",
        {
            "f|body": (
                "add|{a} + {b}",
                "plus|{a} + {b}",
                "subtract|{a} - {b}",
                "minus|{a} - {b}",
                "multiply|{a} * {b}",
                "times|{a} * {b}",
                "divide|{a} // {b}",
                "remainder|{a} % {b}",
                "area|{a} * {b}",
                "perimeter|2 * ({a} + {b})",
                "difference|abs({a} - {b})",
                "distance|abs({a} - {b})",
                "larger|max({a}, {b})",
                "smaller|min({a}, {b})",
                "bigger|max({a}, {b})",
                "midpoint|({a} + {b}) // 2",
                "sum_of_squares|{a} ** 2 + {b} ** 2",
                "is_multiple|{a} % {b} == 0",
            )
        },
    ),
    Family(
        "linear",
        (
            """
def {f}({p}):
    return {p} {op} {K1} {op2} {K2}
""",
            """
def {f}({p}):
    {t} = {p} {op} {K1}
    return {t} {op2} {K2}
""",
        ),
        "int",
        "",
        {
            "f": (
                "convert",
                "adjust",
                "compute",
                "transform",
                "formula",
                "price_with_fee",
                "points",
            ),
            "op": ("*", "+"),
            "op2": ("+", "-"),
        },
        {"K1": (2, 9), "K2": (1, 9)},
    ),
    Family(
        "parity",
        (
            """
def {f}({p}):
    return {p} % 2 == {rest}
""",
            """
def {f}({p}):
    if {p} % 2 == {rest}:
        return True
    return False
""",
        ),
        "int",
        "Tell whether {p} is {what}.",
        {"f|rest|what": ("is_even|0|even", "even|0|even", "is_odd|1|odd", "odd|1|odd")},
    ),
    Family(
        "sign",
        (
            """
def {f}({p}):
    if {p} > 0:
        return {up}
    if {p} < 0:
        return {down}
    return {zero}
""",
            """
def {f}({p}):
    if {p} > 0:
        return {up}
    elif {p} < 0:
        return {down}
    else:
        return {zero}
""",
        ),
        "any",
        "Return the sign of {p}.",
        {
            "f|up|down|zero": (
                "sign|1|-1|0",
                "sign_of|1|-1|0",
                "signum|1|-1|0",
                "describe_sign|'positive'|'negative'|'zero'",
                "sign_name|'plus'|'minus'|'zero'",
            )
        },
    ),
    Family(
        "grade",
        (
            """
def {f}({p}):
    if {p} >= {A}:
        return '{x1}'
    if {p} >= {B}:
        return '{x2}'
    return '{x3}'
""",
            """
def {f}({p}):
    if {p} >= {A}:
        return '{x1}'
    elif {p} >= {B}:
        return '{x2}'
    else:
        return '{x3}'
""",
        ),
        "hundred",
        "",
        {
            "f|x1|x2|x3": (
                "grade|A|B|C",
                "rating|good|fair|bad",
                "level|high|medium|low",
                "band|top|middle|bottom",
                "size_name|large|medium|small",
            ),
            "A": ("70", "80", "90", "60"),
            "B": ("50", "40", "20"),
        },
    ),
    Family(
        "fizz",
        (
            """
def {f}({p}):
    if {p} % {A} == 0 and {p} % {B} == 0:
        return '{x1}{x2}'
    if {p} % {A} == 0:
        return '{x1}'
    if {p} % {B} == 0:
        return '{x2}'
    return str({p})
""",
        ),
        "int",
        "",
        {
            "f": ("fizzbuzz", "fizz", "say", "label", "number_word"),
            "x1": ("fizz", "ping", "tick", "hip"),
            "x2": ("buzz", "pong", "tock", "hop"),
            "A": ("2", "3", "4"),
            "B": ("5", "7"),
        },
    ),
    Family(
        "leap_year",
        (
            """
def {f}(year):
    if year % 400 == 0:
        return True
    if year % 100 == 0:
        return False
    return year % 4 == 0
""",
            """
def {f}(year):
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
""",
        ),
        "year",
        "Tell whether the year is a leap year.",
        {"f": ("is_leap", "leap_year", "is_leap_year", "leap")},
    ),
    Family(
        "collatz",
        (
            """
def {f}({p}):
    {n} = 0
    while {p} != 1:
        if {p} % 2 == 0:
            {p} //= 2
        else:
            {p} = 3 * {p} + 1
        {n} += 1
    return {n}
""",
        ),
        "pos",
        "Count the steps from {p} to 1.",
        {"f": ("collatz", "collatz_steps", "steps_to_one", "hailstone")},
    ),
    Family(
        "countdown",
        (
            """
def {f}({p}):
    {r} = []
    while {p} > 0:
        {r}.append({p})
        {p} -= 1
    return {r}
""",
            """
def {f}({p}):
    return list(range({p}, 0, -1))
""",
        ),
        "small",
        "Return the numbers from {p} down to 1.",
        {"f": ("countdown", "count_down", "down_from", "descending")},
    ),
    Family(
        "multiples",
        (
            """
def {f}({q}, {p}):
    {r} = []
    for {i} in range(1, {p} + 1):
        {r}.append({q} * {i})
    return {r}
""",
            """
def {f}({q}, {p}):
    return [{q} * {i} for {i} in range(1, {p} + 1)]
""",
        ),
        "two small",
        "Return the first {p} multiples of {q}.",
        {"f": ("multiples", "times_table", "table_of", "first_multiples")},
    ),
    Family(
        "to_base",
        (
            """
def {f}({p}):
    if {p} == 0:
        return '0'
    {r} = ''
    while {p} > 0:
        {r} = str({p} % {K}) + {r}
        {p} //= {K}
    return {r}
""",
        ),
        "int",
        "Write {p} in base {K}.",
        {"f|K": ("to_binary|2", "binary|2", "to_octal|8", "to_ternary|3", "base_four|4")},
    ),
    Family(
        "tax",
        (
            """
def {f}({p}):
    if {p} <= {A}:
        return 0
    return ({p} - {A}) * {K1} // 10
""",
            """
def {f}({p}):
    if {p} > {A}:
        return ({p} - {A}) * {K1} // 10
    return 0
""",
        ),
        "hundred",
        "Return {K1} tenths of what {p} has above {A}.",
        {"f": ("tax", "duty", "fee", "surcharge", "late_fee"), "A": ("20", "40", "50", "60")},
        {"K1": (1, 5)},
    ),
    Family(
        "discount",
        (
            """
def {f}({a}, {b}):
    {t} = {a} * {b}
    if {b} >= {K1}:
        {t} -= {K2}
    return {t}
""",
        ),
        "pos pos",
        "Multiply {a} and {b}; take off {K2} from {K1} on.",
        {"f": ("total_price", "order_cost", "bill", "checkout", "invoice")},
        {"K1": (3, 9), "K2": (1, 9)},
    ),
    Family(
        "seconds",
        (
            """
def {f}({p}):
    {a} = {p} // {K}
    {b} = {p} % {K}
    return {a}, {b}
""",
        ),
        "big",
        "Split {p} into whole parts of {K} and the rest.",
        {
            "f|K": (
                "minutes_seconds|60",
                "split_minutes|60",
                "hours_minutes|60",
                "weeks_days|7",
                "dozens|12",
                "days_hours|24",
            )
        },
    ),
)
