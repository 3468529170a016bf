"""Families of functions on strings and lists of words."""

from tgr_local.lab.eval.bugs.family import Family

STRINGS = (
    Family(
        "count_letter",
        (
            """
def {f}({s}, {c}):
    {n} = 0
    for {o} in {s}:
        if {o} == {c}:
            {n} += 1
    return {n}
""",
            """
def {f}({s}, {c}):
    {n} = 0
    for {i} in range(len({s})):
        if {s}[{i}] == {c}:
            {n} += 1
    return {n}
""",
            """
def {f}({s}, {c}):
    return sum(1 for {o} in {s} if {o} == {c})
""",
        ),
        "text member",
        "Count how often {c} occurs in {s}.",
        {"f": ("count_letter", "count_char", "occurrences", "letter_count", "times_in")},
    ),
    Family(
        "count_vowels",
        (
            """
def {f}({s}):
    {n} = 0
    for {c} in {s}:
        if {c} {cmp} {set}:
            {n} += 1
    return {n}
""",
            """
def {f}({s}):
    return len([{c} for {c} in {s} if {c} {cmp} {set}])
""",
        ),
        "text",
        "Count the {what} in {s}.",
        {
            "f|cmp|set|what": (
                "count_vowels|in|'aeiou'|vowels",
                "vowels|in|'aeiou'|vowels",
                "count_consonants|not in|'aeiou '|consonants",
                "count_spaces|==|' '|spaces",
            )
        },
    ),
    Family(
        "reverse_text",
        (
            """
def {f}({s}):
    return {s}[::-1]
""",
            """
def {f}({s}):
    {r} = ''
    for {c} in {s}:
        {r} = {c} + {r}
    return {r}
""",
            """
def {f}({s}):
    if {s} == '':
        return ''
    return {f}({s}[1:]) + {s}[0]
""",
        ),
        "word",
        "Return {s} backwards.",
        {"f": ("reverse_text", "reverse_string", "backward", "mirror", "flip_text")},
    ),
    Family(
        "palindrome",
        (
            """
def {f}({s}):
    return {s} == {s}[::-1]
""",
            """
def {f}({s}):
    {i} = 0
    {j} = len({s}) - 1
    while {i} < {j}:
        if {s}[{i}] != {s}[{j}]:
            return False
        {i} += 1
        {j} -= 1
    return True
""",
            """
def {f}({s}):
    for {i} in range(len({s}) // 2):
        if {s}[{i}] != {s}[len({s}) - 1 - {i}]:
            return False
    return True
""",
        ),
        "mirror",
        "Tell whether {s} reads the same backwards.",
        {"f": ("is_palindrome", "palindrome", "reads_same", "is_mirrored")},
    ),
    Family(
        "without_letter",
        (
            """
def {f}({s}, {c}):
    {r} = ''
    for {o} in {s}:
        if {o} != {c}:
            {r} += {o}
    return {r}
""",
            """
def {f}({s}, {c}):
    return ''.join({o} for {o} in {s} if {o} != {c})
""",
        ),
        "text member",
        "Return {s} without {c}.",
        {"f": ("remove_letter", "without_char", "drop_char", "strip_letter", "delete_char")},
    ),
    Family(
        "keep_kind",
        (
            """
def {f}({s}):
    {r} = ''
    for {c} in {s}:
        if {c}.{method}():
            {r} += {c}
    return {r}
""",
            """
def {f}({s}):
    return [{c} for {c} in {s} if {c}.{method}()]
""",
        ),
        "code",
        "Keep the {what} of {s}.",
        {
            "f|method|what": (
                "only_digits|isdigit|digits",
                "keep_digits|isdigit|digits",
                "only_letters|isalpha|letters",
                "keep_letters|isalpha|letters",
                "only_upper|isupper|capitals",
            )
        },
    ),
    Family(
        "first_letters",
        (
            """
def {f}({s}):
    {r} = ''
    for part in {s}.split():
        {r} += part[{at}]{upper}
    return {r}
""",
            """
def {f}({s}):
    return ''.join(part[{at}]{upper} for part in {s}.split())
""",
        ),
        "text",
        "Return the {what} letters of the words of {s}.",
        {
            "f|at|upper|what": (
                "initials|0|.upper()|first",
                "acronym|0|.upper()|first",
                "first_letters|0||first",
                "last_letters|-1||last",
            )
        },
    ),
    Family(
        "longest_word",
        (
            """
def {f}({ws}):
    {g} = ''
    for {w} in {ws}:
        if len({w}) > len({g}):
            {g} = {w}
    return {g}
""",
            """
def {f}({ws}):
    {g} = {ws}[0]
    for {w} in {ws}:
        if len({w}) > len({g}):
            {g} = {w}
    return {g}
""",
        ),
        "words",
        "Return the longest of the {ws}, the first of several.",
        {"f": ("longest", "longest_word", "longest_name", "max_length_word")},
    ),
    Family(
        "word_lengths",
        (
            """
def {f}({ws}):
    {r} = []
    for {w} in {ws}:
        {r}.append({call})
    return {r}
""",
            """
def {f}({ws}):
    return [{call} for {w} in {ws}]
""",
        ),
        "words0",
        "Return the {what} of each of the {ws}.",
        {
            "f|call|what": (
                "lengths|len({w})|length",
                "word_lengths|len({w})|length",
                "upper_all|{w}.upper()|capitals",
                "shout|{w}.upper()|capitals",
                "capitalize_all|{w}.title()|title form",
                "first_chars|{w}[0]|first letter",
                "last_chars|{w}[-1]|last letter",
            )
        },
    ),
    Family(
        "filter_words",
        (
            """
def {f}({ws}, {k}):
    {r} = []
    for {w} in {ws}:
        if len({w}) {cmp} {k}:
            {r}.append({w})
    return {r}
""",
            """
def {f}({ws}, {k}):
    {n} = 0
    for {w} in {ws}:
        if len({w}) {cmp} {k}:
            {n} += 1
    return {n}
""",
        ),
        "words two",
        "Look for {ws} with {what} {k} letters.",
        {
            "f|cmp|what": (
                "longer_than|>|more than",
                "words_over|>|more than",
                "shorter_than|<|less than",
                "words_under|<|less than",
                "of_length|==|exactly",
            )
        },
    ),
    Family(
        "starting_with",
        (
            """
def {f}({ws}, {c}):
    {r} = []
    for {w} in {ws}:
        if {w}.{method}({c}):
            {r}.append({w})
    return {r}
""",
            """
def {f}({ws}, {c}):
    return [{w} for {w} in {ws} if {w}[{at}] == {c}]
""",
        ),
        "words letter",
        "Keep the {ws} that {what} with {c}.",
        {
            "f|method|at|what": (
                "starting_with|startswith|0|start",
                "begins_with|startswith|0|start",
                "ending_with|endswith|-1|end",
                "ends_in|endswith|-1|end",
            )
        },
    ),
    Family(
        "join_words",
        (
            """
def {f}({ws}, {q}):
    {r} = ''
    for {i}, {w} in enumerate({ws}):
        if {i} > 0:
            {r} += {q}
        {r} += {w}
    return {r}
""",
            """
def {f}({ws}, {q}):
    if not {ws}:
        return ''
    {r} = {ws}[0]
    for {w} in {ws}[1:]:
        {r} += {q} + {w}
    return {r}
""",
        ),
        "words0 separator",
        "Join the {ws} with {q} between them.",
        {"f": ("join_words", "join_with", "joined", "glue", "concat")},
    ),
    Family(
        "repeat_text",
        (
            """
def {f}({s}, {p}):
    {r} = ''
    for _ in range({p}):
        {r} += {s}
    return {r}
""",
            """
def {f}({s}, {p}):
    return {s} * {p}
""",
        ),
        "word small",
        "Return {s} {p} times.",
        {"f": ("repeat", "repeat_text", "times", "multiply_text", "echo")},
    ),
    Family(
        "padded",
        (
            """
def {f}({s}, width):
    while len({s}) < width:
        {s} = {left}
    return {s}
""",
        ),
        "word pos",
        "Make {s} {width} letters long.",
        {
            "f|left": (
                "pad_left|'{fill}' + {s}",
                "fill_left|'{fill}' + {s}",
                "pad_right|{s} + '{fill}'",
                "fill_right|{s} + '{fill}'",
            ),
            "fill": ("-", ".", "0", "*", "x"),
            "width": ("width",),
        },
    ),
    Family(
        "replace_letter",
        (
            """
def {f}({s}, {a}, {b}):
    {r} = ''
    for {c} in {s}:
        if {c} == {a}:
            {r} += {b}
        else:
            {r} += {c}
    return {r}
""",
        ),
        "word member letter",
        "Replace each {a} in {s} by {b}.",
        {"f": ("replace_char", "swap_letter", "substitute", "change_letter")},
    ),
    Family(
        "find_letter",
        (
            """
def {f}({s}, {c}):
    for {i} in range(len({s})):
        if {s}[{i}] == {c}:
            return {i}
    return -1
""",
            """
def {f}({s}, {c}):
    {g} = -1
    for {i} in range(len({s})):
        if {s}[{i}] == {c}:
            {g} = {i}
    return {g}
""",
        ),
        "text member",
        "Look for the place of {c} in {s}; -1 without it.",
        {"f": ("find_char", "index_of_letter", "where_is", "char_position")},
    ),
    Family(
        "anagram",
        (
            """
def {f}({a}, {b}):
    return sorted({a}) == sorted({b})
""",
            """
def {f}({a}, {b}):
    if len({a}) != len({b}):
        return False
    for {c} in {a}:
        if {a}.count({c}) != {b}.count({c}):
            return False
    return True
""",
        ),
        "mixed shuffled",
        "Tell whether {a} and {b} have the same letters.",
        {"f": ("is_anagram", "anagrams", "same_letters", "are_anagrams")},
    ),
    Family(
        "alternate_case",
        (
            """
def {f}({s}):
    {r} = ''
    for {i}, {c} in enumerate({s}):
        if {i} % 2 == 0:
            {r} += {c}.upper()
        else:
            {r} += {c}.lower()
    return {r}
""",
        ),
        "word",
        "Return {s} with every second letter as a capital.",
        {"f": ("alternate_case", "zigzag", "mock", "wave_case")},
    ),
    Family(
        "word_count",
        (
            """
def {f}({s}):
    return len({s}.split())
""",
            """
def {f}({s}):
    {n} = 0
    for part in {s}.split():
        {n} += 1
    return {n}
""",
        ),
        "text",
        "Count the words of {s}.",
        {"f": ("word_count", "count_words", "number_of_words", "n_words")},
    ),
    Family(
        "reverse_words",
        (
            """
def {f}({s}):
    {ws} = {s}.split()
    {ws}.reverse()
    return ' '.join({ws})
""",
            """
def {f}({s}):
    return ' '.join({s}.split()[::-1])
""",
        ),
        "text",
        "Return the words of {s} in reverse order.",
        {"f": ("reverse_words", "words_backwards", "flip_words", "turn_words")},
    ),
    Family(
        "runs",
        (
            """
def {f}({s}):
    {r} = ''
    for {c} in {s}:
        if not {r} or {r}[-1] != {c}:
            {r} += {c}
    return {r}
""",
        ),
        "doubled",
        "Return {s} with each run of a letter made one.",
        {"f": ("squeeze", "collapse", "remove_doubles", "compact")},
    ),
    Family(
        "brackets",
        (
            """
def {f}({s}):
    depth = 0
    for {c} in {s}:
        if {c} == '(':
            depth += 1
        elif {c} == ')':
            depth -= 1
        if depth < 0:
            return False
    return depth == 0
""",
        ),
        "brackets",
        "Tell whether the brackets of {s} are balanced.",
        {"f": ("balanced", "is_balanced", "check_brackets", "matched")},
    ),
    Family(
        "is_kind",
        (
            """
def {f}({s}):
    return len({s}) >= {K1} and {s}[0].{method}()
""",
            """
def {f}({s}):
    if len({s}) < {K1}:
        return False
    return {s}[0].{method}()
""",
        ),
        "code",
        "Tell whether {s} has {K1} letters and starts with a {what}.",
        {
            "f|method|what": (
                "is_valid|isalpha|letter",
                "valid_name|isalpha|letter",
                "check_code|isdigit|digit",
                "is_code|isdigit|digit",
                "accepts|isupper|capital",
            )
        },
        {"K1": (2, 6)},
    ),
    Family(
        "caesar",
        (
            """
def {f}({s}, {q}):
    {r} = ''
    for {c} in {s}:
        {r} += chr((ord({c}) - 97 + {q}) % 26 + 97)
    return {r}
""",
        ),
        "word small",
        "Move each letter of {s} by {q}.",
        {"f": ("caesar", "shift_letters", "encode", "rotate_letters")},
    ),
    Family(
        "digits_in_text",
        (
            """
def {f}({s}):
    {t} = 0
    for {c} in {s}:
        if {c}.isdigit():
            {t} += int({c})
    return {t}
""",
            """
def {f}({s}):
    {t} = 0
    for {c} in {s}:
        {t} = {t} * 10 + int({c})
    return {t}
""",
        ),
        "digits",
        "Read the digits of {s}.",
        {"f": ("text_digits", "digits_of", "read_digits", "from_digits")},
    ),
    Family(
        "common_prefix",
        (
            """
def {f}({a}, {b}):
    {n} = 0
    while {n} < min(len({a}), len({b})) and {a}[{n}] == {b}[{n}]:
        {n} += 1
    return {a}[:{n}]
""",
        ),
        "mixed near",
        "Return the beginning that {a} and {b} share.",
        {"f": ("common_prefix", "shared_start", "same_start", "common_head")},
    ),
)
