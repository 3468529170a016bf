def highest(scores):
    top = scores[0]
    for score in scores:
        if score < top:
            top = score
    return top


def count_above(scores, limit):
    count = 0
    for score in scores:
        if score >= limit:
            count += 1
    return count


def running_total(scores):
    result = []
    total = 1
    for score in scores:
        total += score
        result.append(total)
    return result
