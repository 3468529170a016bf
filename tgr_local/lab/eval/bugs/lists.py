"""Families of functions on lists of numbers."""

from tgr_local.lab.eval.bugs.family import Family

LISTS = (
    Family(
        "count_compare",
        (
            """
def {f}({xs}, {k}):
    {n} = 0
    for {x} in {xs}:
        if {x} {cmp} {k}:
            {n} += 1
    return {n}
""",
            """
def {f}({xs}, {k}):
    {n} = 0
    for {i} in range(len({xs})):
        if {xs}[{i}] {cmp} {k}:
            {n} += 1
    return {n}
""",
            """
def {f}({xs}, {k}):
    return sum(1 for {x} in {xs} if {x} {cmp} {k})
""",
        ),
        "list member",
        "Count the {xs} that are {what} {k}.",
        {
            "f|cmp|what": (
                "count_above|>|above",
                "count_over|>|over",
                "count_below|<|below",
                "count_under|<|under",
                "count_from|>=|at least",
                "count_at_least|>=|at least",
                "count_up_to|<=|at most",
                "count_equal|==|equal to",
                "occurrences|==|equal to",
            )
        },
    ),
    Family(
        "filter_compare",
        (
            """
def {f}({xs}, {k}):
    {r} = []
    for {x} in {xs}:
        if {x} {cmp} {k}:
            {r}.append({x})
    return {r}
""",
            """
def {f}({xs}, {k}):
    return [{x} for {x} in {xs} if {x} {cmp} {k}]
""",
        ),
        "list member",
        "Keep the {xs} that are {what} {k}.",
        {
            "f|cmp|what": (
                "keep_above|>|above",
                "filter_above|>|above",
                "only_over|>|over",
                "keep_below|<|below",
                "filter_below|<|below",
                "drop_below|>=|at least",
                "drop_above|<=|at most",
                "at_most|<=|at most",
                "at_least|>=|at least",
                "without|!=|not equal to",
                "remove_all|!=|not equal to",
            )
        },
    ),
    Family(
        "total",
        (
            """
def {f}({xs}):
    {t} = 0
    for {x} in {xs}:
        {t} += {x}
    return {t}
""",
            """
def {f}({xs}):
    {t} = 0
    for {i} in range(len({xs})):
        {t} += {xs}[{i}]
    return {t}
""",
            """
def {f}({xs}):
    {t} = 0
    {i} = 0
    while {i} < len({xs}):
        {t} += {xs}[{i}]
        {i} += 1
    return {t}
""",
        ),
        "list0",
        "Add up the {xs}.",
        {"f": ("add_all", "sum_list", "add_up", "total_of", "sum_all", "sum_of")},
    ),
    Family(
        "product",
        (
            """
def {f}({xs}):
    {t} = 1
    for {x} in {xs}:
        {t} *= {x}
    return {t}
""",
            """
def {f}({xs}):
    if not {xs}:
        return 1
    return {xs}[0] * {f}({xs}[1:])
""",
        ),
        "list0",
        "Multiply all {xs}.",
        {"f": ("product", "multiply_all", "product_of", "multiply")},
    ),
    Family(
        "sum_special",
        (
            """
def {f}({xs}):
    {t} = 0
    for {x} in {xs}:
        if {x} % {K} == {rest}:
            {t} += {x}
    return {t}
""",
            """
def {f}({xs}):
    return sum({x} for {x} in {xs} if {x} % {K} == {rest})
""",
        ),
        "list",
        "Add up the {what} {xs}.",
        {
            "f|what|K|rest": (
                "sum_even|even|2|0",
                "sum_odd|odd|2|1",
                "total_even|even|2|0",
                "add_odd|odd|2|1",
            )
        },
    ),
    Family(
        "maximum",
        (
            """
def {f}({xs}):
    {g} = {xs}[0]
    for {x} in {xs}:
        if {x} {cmp} {g}:
            {g} = {x}
    return {g}
""",
            """
def {f}({xs}):
    {g} = {xs}[0]
    for {i} in range(1, len({xs})):
        if {xs}[{i}] {cmp} {g}:
            {g} = {xs}[{i}]
    return {g}
""",
        ),
        "signed",
        "Return the {what} of the {xs}.",
        {
            "f|cmp|what": (
                "largest|>|largest",
                "maximum|>|largest",
                "highest|>|highest",
                "biggest|>|biggest",
                "smallest|<|smallest",
                "minimum|<|smallest",
                "lowest|<|lowest",
                "least|<|least",
            )
        },
    ),
    Family(
        "position_of_best",
        (
            """
def {f}({xs}):
    {g} = 0
    for {i} in range(1, len({xs})):
        if {xs}[{i}] {cmp} {xs}[{g}]:
            {g} = {i}
    return {g}
""",
        ),
        "distinct",
        "Return the index of the {what} of the {xs}.",
        {
            "f|cmp|what": (
                "argmax|>|largest",
                "index_of_max|>|largest",
                "argmin|<|smallest",
                "index_of_min|<|smallest",
            )
        },
    ),
    Family(
        "find_index",
        (
            """
def {f}({xs}, {k}):
    for {i}, {x} in enumerate({xs}):
        if {x} == {k}:
            return {i}
    return -1
""",
            """
def {f}({xs}, {k}):
    for {i} in range(len({xs})):
        if {xs}[{i}] == {k}:
            return {i}
    return -1
""",
            """
def {f}({xs}, {k}):
    {i} = 0
    while {i} < len({xs}):
        if {xs}[{i}] == {k}:
            return {i}
        {i} += 1
    return -1
""",
        ),
        "list member",
        "Return the first index of {k} in {xs}, or -1.",
        {"f": ("find", "index_of", "position", "first_index", "search", "locate")},
    ),
    Family(
        "average",
        (
            """
def {f}({xs}):
    if not {xs}:
        return 0
    return sum({xs}) // len({xs})
""",
            """
def {f}({xs}):
    {t} = 0
    for {x} in {xs}:
        {t} += {x}
    if len({xs}) == 0:
        return 0
    return {t} // len({xs})
""",
        ),
        "list0",
        "Return the mean of the {xs}, rounded down; 0 without any.",
        {"f": ("average", "mean", "mean_of", "average_of")},
    ),
    Family(
        "scaled",
        (
            """
def {f}({xs}, {q}):
    {r} = []
    for {x} in {xs}:
        {r}.append({x} {op} {q})
    return {r}
""",
            """
def {f}({xs}, {q}):
    return [{x} {op} {q} for {x} in {xs}]
""",
        ),
        "list two",
        "{what} each of the {xs} by {q}.",
        {
            "f|op|what": (
                "scale|*|Multiply",
                "multiply_each|*|Multiply",
                "shift|+|Raise",
                "raise_all|+|Raise",
                "lower_all|-|Lower",
                "reduce_all|-|Lower",
            )
        },
    ),
    Family(
        "running",
        (
            """
def {f}({xs}):
    {r} = []
    {t} = 0
    for {x} in {xs}:
        {t} += {x}
        {r}.append({t})
    return {r}
""",
        ),
        "list0",
        "Return the running totals of the {xs}.",
        {"f": ("running_total", "running_sum", "cumulative", "partial_sums", "prefix_sums")},
    ),
    Family(
        "differences",
        (
            """
def {f}({xs}):
    {r} = []
    for {i} in range(1, len({xs})):
        {r}.append({xs}[{i}] - {xs}[{i} - 1])
    return {r}
""",
            """
def {f}({xs}):
    return [{xs}[{i} + 1] - {xs}[{i}] for {i} in range(len({xs}) - 1)]
""",
        ),
        "list",
        "Return how much each of the {xs} differs from the one before it.",
        {"f": ("differences", "deltas", "gaps", "changes", "steps_between")},
    ),
    Family(
        "unique",
        (
            """
def {f}({xs}):
    {u} = set()
    {r} = []
    for {x} in {xs}:
        if {x} not in {u}:
            {u}.add({x})
            {r}.append({x})
    return {r}
""",
            """
def {f}({xs}):
    {r} = []
    for {x} in {xs}:
        if {x} not in {r}:
            {r}.append({x})
    return {r}
""",
        ),
        "repeated",
        "Return the {xs} without repetitions, in order.",
        {"f": ("unique", "distinct", "dedupe", "remove_duplicates", "without_repeats")},
    ),
    Family(
        "sorted_check",
        (
            """
def {f}({xs}):
    for {i} in range(len({xs}) - 1):
        if {xs}[{i}] {cmp} {xs}[{i} + 1]:
            return False
    return True
""",
            """
def {f}({xs}):
    for {i} in range(1, len({xs})):
        if {xs}[{i} - 1] {cmp} {xs}[{i}]:
            return False
    return True
""",
        ),
        "list0",
        "Tell whether the {xs} are in {what} order.",
        {
            "f|cmp|what": (
                "is_sorted|>|ascending",
                "is_ascending|>|ascending",
                "is_descending|<|descending",
                "is_increasing|>=|strictly ascending",
            )
        },
    ),
    Family(
        "all_any",
        (
            """
def {f}({xs}, {k}):
    for {x} in {xs}:
        if {x} {cmp} {k}:
            return {hit}
    return {miss}
""",
        ),
        "list member",
        "Tell whether {what} of the {xs} is {side} {k}.",
        {
            "f|cmp|hit|miss|what|side": (
                "any_above|>|True|False|any|above",
                "any_below|<|True|False|any|below",
                "all_above|<=|False|True|each|above",
                "all_below|>=|False|True|each|below",
                "contains|==|True|False|one|equal to",
                "has_value|==|True|False|one|equal to",
                "none_above|>|False|True|none|above",
            )
        },
    ),
    Family(
        "reverse",
        (
            """
def {f}({xs}):
    {r} = []
    for {i} in range(len({xs}) - 1, -1, -1):
        {r}.append({xs}[{i}])
    return {r}
""",
            """
def {f}({xs}):
    {r} = []
    for {x} in {xs}:
        {r}.insert(0, {x})
    return {r}
""",
            """
def {f}({xs}):
    if len({xs}) == 0:
        return []
    return {f}({xs}[1:]) + [{xs}[0]]
""",
        ),
        "list0",
        "Return the {xs} in reverse order.",
        {"f": ("reverse", "reversed_list", "backwards", "flip", "turn_around")},
    ),
    Family(
        "ends",
        (
            """
def {f}({xs}, {q}):
    return {xs}[:{q}]
""",
            """
def {f}({xs}, {q}):
    {r} = []
    for {i} in range(min({q}, len({xs}))):
        {r}.append({xs}[{i}])
    return {r}
""",
        ),
        "list small",
        "Return the first {q} of the {xs}.",
        {"f": ("take", "first_n", "head", "take_first", "prefix")},
    ),
    Family(
        "rotate",
        (
            """
def {f}({xs}, {q}):
    if not {xs}:
        return []
    {q} = {q} % len({xs})
    return {xs}[{q}:] + {xs}[:{q}]
""",
        ),
        "list0 small",
        "Move the first {q} of the {xs} to the end.",
        {"f": ("rotate", "rotate_left", "rotated", "shift_left")},
    ),
    Family(
        "every_nth",
        (
            """
def {f}({xs}, {q}):
    {r} = []
    for {i} in range(0, len({xs}), {q}):
        {r}.append({xs}[{i}])
    return {r}
""",
            """
def {f}({xs}, {q}):
    {r} = []
    for {i}, {x} in enumerate({xs}):
        if {i} % {q} == 0:
            {r}.append({x})
    return {r}
""",
        ),
        "list two",
        "Return each {q}th of the {xs}, from the first on.",
        {"f": ("every_nth", "pick_every", "each_nth", "sample_every")},
    ),
    Family(
        "chunks",
        (
            """
def {f}({xs}, {q}):
    {r} = []
    for {i} in range(0, len({xs}), {q}):
        {r}.append({xs}[{i}:{i} + {q}])
    return {r}
""",
        ),
        "list two",
        "Cut the {xs} into parts of {q}.",
        {"f": ("chunks", "split_every", "batches", "chunked", "in_groups")},
    ),
    Family(
        "dot",
        (
            """
def {f}({a}, {b}):
    {t} = 0
    for {i} in range(len({a})):
        {t} += {a}[{i}] * {b}[{i}]
    return {t}
""",
            """
def {f}({a}, {b}):
    {t} = 0
    for {x}, {o} in zip({a}, {b}):
        {t} += {x} * {o}
    return {t}
""",
        ),
        "same3 same3",
        "Return the scalar product of {a} and {b}.",
        {"f": ("dot", "dot_product", "scalar_product", "inner_product")},
    ),
    Family(
        "merge_sorted",
        (
            """
def {f}({a}, {b}):
    {r} = []
    {i} = 0
    {j} = 0
    while {i} < len({a}) and {j} < len({b}):
        if {a}[{i}] <= {b}[{j}]:
            {r}.append({a}[{i}])
            {i} += 1
        else:
            {r}.append({b}[{j}])
            {j} += 1
    return {r} + {a}[{i}:] + {b}[{j}:]
""",
        ),
        "sorted sorted",
        "Merge two sorted lists.",
        {"f": ("merge", "merge_sorted", "merged", "join_sorted")},
    ),
    Family(
        "common",
        (
            """
def {f}({a}, {b}):
    {r} = []
    for {x} in {a}:
        if {x} {cmp} {b}:
            {r}.append({x})
    return {r}
""",
            """
def {f}({a}, {b}):
    return [{x} for {x} in {a} if {x} {cmp} {b}]
""",
        ),
        "repeated repeated",
        "Return the elements of {a} that are {cmp} {b}.",
        {
            "f|cmp": (
                "common|in",
                "shared|in",
                "intersection|in",
                "difference|not in",
                "only_in_first|not in",
                "missing_from|not in",
            )
        },
    ),
    Family(
        "binary_search",
        (
            """
def {f}({xs}, {k}):
    {a} = 0
    {b} = len({xs}) - 1
    while {a} <= {b}:
        mid = ({a} + {b}) // 2
        if {xs}[mid] == {k}:
            return mid
        if {xs}[mid] < {k}:
            {a} = mid + 1
        else:
            {b} = mid - 1
    return -1
""",
        ),
        "distinct member",
        "Return the index of {k} in the sorted {xs}, or -1.",
        {"f": ("binary_search", "bisect", "search_sorted", "find_sorted")},
    ),
    Family(
        "split_list",
        (
            """
def {f}({xs}, {k}):
    {a} = []
    {b} = []
    for {x} in {xs}:
        if {x} < {k}:
            {a}.append({x})
        else:
            {b}.append({x})
    return {a}, {b}
""",
        ),
        "list member",
        "Split the {xs} into those below {k} and the others.",
        {"f": ("partition", "split_at", "separate", "divide_by")},
    ),
    Family(
        "clamped",
        (
            """
def {f}({xs}, {a}, {b}):
    {r} = []
    for {x} in {xs}:
        if {x} < {a}:
            {r}.append({a})
        elif {x} > {b}:
            {r}.append({b})
        else:
            {r}.append({x})
    return {r}
""",
            """
def {f}({xs}, {a}, {b}):
    return [max({a}, min({b}, {x})) for {x} in {xs}]
""",
        ),
        "signed small int",
        "Limit the {xs} to the range from {a} to {b}.",
        {"f": ("clamp_all", "clip_all", "limit_all", "clip_list")},
    ),
    Family(
        "spread",
        (
            """
def {f}({xs}):
    return max({xs}) - min({xs})
""",
            """
def {f}({xs}):
    {a} = {xs}[0]
    {b} = {xs}[0]
    for {x} in {xs}:
        if {x} < {a}:
            {a} = {x}
        if {x} > {b}:
            {b} = {x}
    return {b} - {a}
""",
        ),
        "signed",
        "Return the distance of the smallest and the largest of the {xs}.",
        {"f": ("spread", "value_range", "extent", "span")},
    ),
    Family(
        "second_largest",
        (
            """
def {f}({xs}):
    {r} = sorted(set({xs}), reverse=True)
    if len({r}) < 2:
        return None
    return {r}[1]
""",
        ),
        "repeated",
        "Return the second largest of the {xs}, None without one.",
        {"f": ("second_largest", "runner_up", "second_best", "next_to_max")},
    ),
    Family(
        "longest_run",
        (
            """
def {f}({xs}):
    {g} = 0
    {n} = 0
    for {i} in range(len({xs})):
        if {i} > 0 and {xs}[{i}] == {xs}[{i} - 1]:
            {n} += 1
        else:
            {n} = 1
        {g} = max({g}, {n})
    return {g}
""",
        ),
        "repeated",
        "Return the length of the longest run of equal {xs}.",
        {"f": ("longest_run", "longest_streak", "max_run", "best_streak")},
    ),
    Family(
        "bubble_sort",
        (
            """
def {f}({xs}):
    {r} = list({xs})
    for {i} in range(len({r})):
        for {j} in range(len({r}) - 1 - {i}):
            if {r}[{j}] > {r}[{j} + 1]:
                {r}[{j}], {r}[{j} + 1] = {r}[{j} + 1], {r}[{j}]
    return {r}
""",
        ),
        "list",
        "Return the {xs} in ascending order.",
        {"f": ("bubble_sort", "sort_list", "sorted_copy", "in_order")},
    ),
)
