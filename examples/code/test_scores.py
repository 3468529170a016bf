from scores import count_above, highest, running_total


def test_highest():
    assert highest([3, 9, 4]) == 9
    assert highest([-2, -7]) == -2


def test_count_above():
    assert count_above([1, 5, 8, 9, 7], 5) == 3
    assert count_above([], 3) == 0


def test_running_total():
    assert running_total([2, 3, 5]) == [2, 5, 10]
