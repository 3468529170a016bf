#include "base/cells.h"

#include "check.h"
#include "draw.h"

#include <algorithm>

namespace tgr {

using Cells = std::vector<uint32_t>;

static Cells cells_of(const CellList & list) {
    Cells cells;
    list.each([&](uint32_t cell) { cells.push_back(cell); });
    return cells;
}

static CellList some_cells(test::Draw & draw, Cells & plain) {
    CellList list;
    for (size_t n = draw.below(40); n > 0; --n) {
        const bool goes_on = !plain.empty() && draw.below(3) > 0;
        plain.push_back(goes_on ? plain.back() + 1 : uint32_t(draw.below(30)));
        list.push(plain.back());
    }
    return list;
}

TEST(a_list_of_cells_is_what_was_pushed) {
    test::Draw draw(1);
    for (int i = 0; i < 500; ++i) {
        Cells          plain, more;
        CellList       list  = some_cells(draw, plain);
        const CellList other = some_cells(draw, more);
        CHECK_EQ(list.size(), plain.size());
        CHECK_EQ(cells_of(list), plain);
        CHECK(plain.empty() || list.last() == plain.back());
        const size_t first = draw.below(45), last = draw.below(45), end = std::min(last, plain.size());
        const Cells  part(plain.begin() + ptrdiff_t(std::min(first, end)), plain.begin() + ptrdiff_t(end));
        CHECK_EQ(cells_of(list.part(uint32_t(first), uint32_t(last))), part);
        list.append(other);
        plain.insert(plain.end(), more.begin(), more.end());
        CHECK_EQ(cells_of(list), plain);
    }
}

TEST(consecutive_cells_are_one_extent) {
    test::Draw draw(2);
    for (int i = 0; i < 200; ++i) {
        Cells          plain;
        const CellList list     = some_cells(draw, plain);
        size_t         n_breaks = 0;
        for (size_t k = 1; k < plain.size(); ++k) {
            n_breaks += plain[k] != plain[k - 1] + 1;
        }
        CHECK_EQ(list.runs().size(), plain.empty() ? 0 : n_breaks + 1);
    }
}

TEST(a_pool_counts_the_cells_that_are_used_and_kept) {
    test::Draw draw(3);
    CellPool   pool;
    pool.resize(20);
    std::vector<CellPool::Cell> plain(20);
    for (int i = 0; i < 5000; ++i) {
        const uint32_t at   = uint32_t(draw.below(20));
        auto &         cell = plain[at];
        switch (draw.below(6)) {
        case 0:
            pool.own(at, cell.owner = draw.below(3));
            break;
        case 1:
            pool.plan(at, cell.planned = draw.below(2) == 1);
            break;
        case 2:
            pool.use(at);
            ++cell.uses;
            break;
        case 3:
            if (cell.uses > 0) {
                CHECK_EQ(pool.unuse(at), cell.uses == 1);
                --cell.uses;
            }
            break;
        case 4:
            pool.keep(at);
            ++cell.keeps;
            break;
        default:
            if (cell.keeps > 0) {
                pool.unkeep(at);
                --cell.keeps;
            }
        }
        const auto count = [&](auto is) { return size_t(std::count_if(plain.begin(), plain.end(), is)); };
        CHECK_EQ(pool.n_used(), count([](const auto & one) { return one.uses > 0; }));
        CHECK_EQ(pool.n_kept(), count([](const auto & one) { return one.keeps > 0; }));
        const bool held = cell.owner != 0 || cell.uses > 0;
        CHECK_EQ(pool[at].free(), !held && cell.keeps == 0);
        CHECK_EQ(pool[at].reclaimable(), !held && cell.keeps > 0);
        CHECK_EQ(pool[at].obtainable(), !held);
        CHECK_EQ(pool[at].idle(), cell.uses == 0 && !cell.planned);
    }
}

} // namespace tgr
