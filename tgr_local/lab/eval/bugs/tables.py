"""Families of functions on dictionaries and on rows of numbers."""

from tgr_local.lab.eval.bugs.family import Family

TABLES = (
    Family(
        "frequency",
        (
            """
def {f}({ws}):
    {d} = {}
    for {w} in {ws}:
        {d}[{w}] = {d}.get({w}, 0) + 1
    return {d}
""",
            """
def {f}({ws}):
    {d} = {}
    for {w} in {ws}:
        if {w} in {d}:
            {d}[{w}] += 1
        else:
            {d}[{w}] = 1
    return {d}
""",
        ),
        "words0",
        "Count how often each of the {ws} occurs.",
        {"f": ("frequency", "count_each", "histogram", "tally", "count_items")},
    ),
    Family(
        "most_common",
        (
            """
def {f}({xs}):
    {g} = {xs}[0]
    for {x} in {xs}:
        if {xs}.count({x}) > {xs}.count({g}):
            {g} = {x}
    return {g}
""",
        ),
        "repeated",
        "Return the most frequent of the {xs}.",
        {"f": ("most_common", "mode", "most_frequent", "favourite")},
    ),
    Family(
        "group_by_length",
        (
            """
def {f}({ws}):
    {d} = {}
    for {w} in {ws}:
        key = {by}
        if key not in {d}:
            {d}[key] = []
        {d}[key].append({w})
    return {d}
""",
            """
def {f}({ws}):
    {d} = {}
    for {w} in {ws}:
        {d}.setdefault({by}, []).append({w})
    return {d}
""",
        ),
        "words0",
        "Group the {ws} by their {what}.",
        {
            "f|by|what": (
                "group_by_length|len({w})|length",
                "by_length|len({w})|length",
                "by_initial|{w}[0]|first letter",
                "group_by_first|{w}[0]|first letter",
            )
        },
    ),
    Family(
        "invert",
        (
            """
def {f}({d}):
    {r} = {}
    for {key}, {val} in {d}.items():
        {r}[{val}] = {key}
    return {r}
""",
        ),
        "table",
        "Exchange the keys and the values of {d}.",
        {"f": ("invert", "swap_keys", "reverse_mapping", "inverted")},
    ),
    Family(
        "sum_values",
        (
            """
def {f}({d}):
    {t} = 0
    for {key} in {d}:
        {t} += {d}[{key}]
    return {t}
""",
            """
def {f}({d}):
    {t} = 0
    for {val} in {d}.values():
        {t} += {val}
    return {t}
""",
        ),
        "table",
        "Add up the values of {d}.",
        {"f": ("sum_values", "total_stock", "total_value", "add_values")},
    ),
    Family(
        "keys_where",
        (
            """
def {f}({d}, {k}):
    {r} = []
    for {key}, {val} in {d}.items():
        if {val} {cmp} {k}:
            {r}.append({key})
    return {r}
""",
            """
def {f}({d}, {k}):
    return [{key} for {key}, {val} in {d}.items() if {val} {cmp} {k}]
""",
        ),
        "table small",
        "Return the keys whose value is {what} {k}.",
        {
            "f|cmp|what": (
                "keys_above|>|above",
                "names_over|>|over",
                "keys_below|<|below",
                "low_stock|<|below",
                "keys_with|==|equal to",
                "passed|>=|at least",
                "at_least|>=|at least",
            )
        },
    ),
    Family(
        "best_key",
        (
            """
def {f}({d}):
    {g} = None
    for {key} in {d}:
        if {g} is None or {d}[{key}] {cmp} {d}[{g}]:
            {g} = {key}
    return {g}
""",
        ),
        "table",
        "Return the key with the {what} value.",
        {
            "f|cmp|what": (
                "best_key|>|largest",
                "winner|>|largest",
                "top_name|>|largest",
                "cheapest|<|smallest",
                "lowest_key|<|smallest",
            )
        },
    ),
    Family(
        "merge_tables",
        (
            """
def {f}({a}, {b}):
    {r} = dict({a})
    for {key}, {val} in {b}.items():
        {r}[{key}] = {r}.get({key}, 0) + {val}
    return {r}
""",
        ),
        "table table",
        "Add the values of {a} and {b} by key.",
        {"f": ("merge_counts", "add_tables", "combine", "sum_tables")},
    ),
    Family(
        "lookup",
        (
            """
def {f}({d}, {key}):
    if {key} in {d}:
        return {d}[{key}]
    return {default}
""",
            """
def {f}({d}, {key}):
    return {d}.get({key}, {default})
""",
        ),
        "table member",
        "Return the value of {key} in {d}, or {default}.",
        {
            "f": ("lookup", "get_or", "value_of", "fetch", "price_of"),
            "default": ("0", "-1", "None", "1"),
        },
    ),
    Family(
        "pairs_to_dict",
        (
            """
def {f}(pairs):
    {d} = {}
    for {key}, {val} in pairs:
        {d}[{key}] = {d}.get({key}, 0) + {val}
    return {d}
""",
            """
def {f}(pairs):
    {t} = 0
    for {key}, {val} in pairs:
        {t} += {val}
    return {t}
""",
        ),
        "pairs",
        "",
        {"f": ("collect", "sum_pairs", "add_pairs", "totals")},
    ),
    Family(
        "sum_rows",
        (
            """
def {f}({rows}):
    {t} = 0
    for {row} in {rows}:
        for {x} in {row}:
            {t} += {x}
    return {t}
""",
            """
def {f}({rows}):
    return sum(sum({row}) for {row} in {rows})
""",
        ),
        "rows",
        "Add up all numbers of the {rows}.",
        {"f": ("sum_rows", "grid_sum", "total_grid", "matrix_sum")},
    ),
    Family(
        "row_sums",
        (
            """
def {f}({rows}):
    {r} = []
    for {row} in {rows}:
        {r}.append({call}({row}))
    return {r}
""",
            """
def {f}({rows}):
    return [{call}({row}) for {row} in {rows}]
""",
        ),
        "rows",
        "Return the {what} of each row.",
        {
            "f|call|what": (
                "row_sums|sum|sum",
                "row_totals|sum|sum",
                "row_max|max|maximum",
                "best_of_rows|max|maximum",
                "row_min|min|minimum",
            )
        },
    ),
    Family(
        "column",
        (
            """
def {f}({rows}, {i}):
    {r} = []
    for {row} in {rows}:
        {r}.append({row}[{i}])
    return {r}
""",
            """
def {f}({rows}, {i}):
    {t} = 0
    for {row} in {rows}:
        {t} += {row}[{i}]
    return {t}
""",
        ),
        "rows bit",
        "Look at column {i} of the {rows}.",
        {"f": ("column", "get_column", "pick_column", "nth_column")},
    ),
    Family(
        "flatten",
        (
            """
def {f}({rows}):
    {r} = []
    for {row} in {rows}:
        for {x} in {row}:
            {r}.append({x})
    return {r}
""",
            """
def {f}({rows}):
    {r} = []
    for {row} in {rows}:
        {r}.extend({row})
    return {r}
""",
        ),
        "rows",
        "Return all elements of the {rows} in one list.",
        {"f": ("flatten", "flat", "join_rows", "unnest")},
    ),
    Family(
        "transpose",
        (
            """
def {f}({rows}):
    {r} = []
    for {i} in range(len({rows}[0])):
        {r}.append([{row}[{i}] for {row} in {rows}])
    return {r}
""",
        ),
        "rows",
        "Exchange rows and columns.",
        {"f": ("transpose", "columns", "turn", "swap_axes")},
    ),
    Family(
        "diagonal",
        (
            """
def {f}({rows}):
    {t} = 0
    for {i} in range(len({rows})):
        {t} += {rows}[{i}][{at}]
    return {t}
""",
        ),
        "square",
        "Add up the {what} diagonal.",
        {
            "f|at|what": (
                "diagonal|{i}|main",
                "trace|{i}|main",
                "diagonal_sum|{i}|main",
                "anti_diagonal|len({rows}) - 1 - {i}|other",
            )
        },
    ),
    Family(
        "zip_dict",
        (
            """
def {f}({ws}, {xs}):
    {d} = {}
    for {i} in range(len({ws})):
        {d}[{ws}[{i}]] = {xs}[{i}]
    return {d}
""",
            """
def {f}({ws}, {xs}):
    {d} = {}
    for {w}, {x} in zip({ws}, {xs}):
        {d}[{w}] = {x}
    return {d}
""",
        ),
        "names2 same2",
        "Make a dictionary from {ws} to {xs}.",
        {"f": ("to_dict", "pair_up", "make_table", "zip_to_dict")},
    ),
    Family(
        "nested_depth",
        (
            """
def {f}({xs}):
    {t} = 0
    for {x} in {xs}:
        if isinstance({x}, list):
            {t} += {f}({x})
        else:
            {t} += {x}
    return {t}
""",
        ),
        "nested",
        "Add up the numbers of nested lists.",
        {"f": ("deep_sum", "nested_sum", "sum_nested", "tree_sum")},
    ),
    Family(
        "votes",
        (
            """
def {f}({d}, {key}, {val}):
    if {key} not in {d}:
        {d}[{key}] = 0
    {d}[{key}] += {val}
    return {d}
""",
        ),
        "table member small",
        "Add {val} to {key} in {d}.",
        {"f": ("add_to", "deposit", "give_points", "restock")},
    ),
)
