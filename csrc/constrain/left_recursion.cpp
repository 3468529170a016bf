// Two properties of rules that depend on each other: which match the empty text, and which begin with themselves.
#include "constrain/gbnf.h"

namespace tgr {

using Kind = GrammarSymbol::Kind;

std::vector<bool> nullable_rules(const GrammarRules & grammar) {
    struct Alternative {
        uint32_t rule;
        uint32_t n_left = 0; // symbols that are not known to match the empty text
    };

    std::vector<Alternative>           all;
    std::vector<std::vector<uint32_t>> used_in(grammar.rules.size()); // alternatives
    std::vector<bool>                  nullable(grammar.rules.size());
    std::vector<uint32_t>              found;
    const auto                         count_down = [&](uint32_t i) {
        if (all[i].n_left == 0 && !nullable[all[i].rule]) {
            nullable[all[i].rule] = true;
            found.push_back(all[i].rule);
        }
    };
    for (uint32_t rule = 0; rule < grammar.rules.size(); ++rule) {
        for (const uint32_t begin : grammar.rules[rule]) {
            all.push_back({ rule });
            for (const auto * symbol = &grammar.symbols[begin]; symbol->kind != Kind::END; ++symbol) {
                const bool is_rule = symbol->kind == Kind::RULE || symbol->kind == Kind::REPEAT;
                if (symbol->kind == Kind::REPEAT && symbol->least == 0) {
                    continue;
                }
                ++all.back().n_left;
                if (is_rule) {
                    used_in[symbol->value].push_back(uint32_t(all.size() - 1));
                }
            }
            count_down(uint32_t(all.size() - 1));
        }
    }
    while (!found.empty()) {
        const uint32_t rule = found.back();
        found.pop_back();
        for (const uint32_t i : used_in[rule]) {
            --all[i].n_left;
            count_down(i);
        }
    }
    return nullable;
}

namespace {

// A rule that a rule can begin with.
struct Corner {
    uint32_t rule;
    bool     last; // nothing follows it there
};

std::vector<std::vector<Corner>> left_corners(const GrammarRules & grammar, const std::vector<bool> & nullable) {
    std::vector<std::vector<Corner>> corners(grammar.rules.size());
    for (uint32_t rule = 0; rule < grammar.rules.size(); ++rule) {
        for (const uint32_t begin : grammar.rules[rule]) {
            for (const auto * symbol = &grammar.symbols[begin];; ++symbol) {
                if (symbol->kind != Kind::RULE && symbol->kind != Kind::REPEAT) {
                    break;
                }
                const bool repeats = symbol->kind == Kind::REPEAT && symbol->most > 1;
                if (symbol->kind == Kind::RULE || symbol->most > 0) {
                    corners[rule].push_back({ symbol->value, symbol[1].kind == Kind::END && !repeats });
                }
                if (!nullable[symbol->value] && !(symbol->kind == Kind::REPEAT && symbol->least == 0)) {
                    break;
                }
            }
        }
    }
    return corners;
}

// The strongly connected component of every rule (Kosaraju's algorithm, without recursion).
std::vector<uint32_t> components(const std::vector<std::vector<Corner>> & corners) {
    constexpr uint32_t                 NONE = UINT32_MAX;
    const size_t                       n    = corners.size();
    std::vector<std::vector<uint32_t>> begins(n); // the rules that can begin with one
    std::vector<size_t>                next(n);   // corner
    std::vector<bool>                  seen(n);
    std::vector<uint32_t>              path, left, component(n, NONE); // left: the last one first
    for (uint32_t start = 0; start < n; ++start) {
        if (!seen[start]) {
            path.push_back(start);
        }
        while (!path.empty()) {
            const uint32_t rule = path.back();
            seen[rule]          = true;
            if (next[rule] < corners[rule].size()) {
                const uint32_t to = corners[rule][next[rule]++].rule;
                begins[to].push_back(rule);
                if (!seen[to]) {
                    path.push_back(to);
                }
                continue;
            }
            left.push_back(rule);
            path.pop_back();
        }
    }
    for (; !left.empty(); left.pop_back()) {
        path.push_back(left.back());
        while (!path.empty()) {
            const uint32_t rule = path.back();
            path.pop_back();
            if (component[rule] == NONE) {
                component[rule] = left.back();
                path.insert(path.end(), begins[rule].begin(), begins[rule].end());
            }
        }
    }
    return component;
}

} // namespace

bool is_left_recursive(const GrammarRules & grammar, const std::vector<bool> & nullable) {
    const auto corners   = left_corners(grammar, nullable);
    const auto component = components(corners);
    for (uint32_t rule = 0; rule < corners.size(); ++rule) {
        for (const auto & [to, last] : corners[rule]) {
            if (!last && component[to] == component[rule]) {
                return true;
            }
        }
    }
    return false;
}

} // namespace tgr
