// Runs all tests, or those that are named. Exit code: 0 = they pass, 1 = one fails, 2 = a name is none, 77 = skipped.
#include "check.h"

#include <cstdio>
#include <set>

int main(int n, char ** arguments) {
    const std::set<std::string> wanted(arguments + 1, arguments + n);
    std::set<std::string>       unknown = wanted;
    size_t                      n_run = 0, n_failed = 0, n_skipped = 0;
    for (const auto & [name, run] : tgr::test::tests) {
        unknown.erase(name);
        if (!wanted.empty() && wanted.count(name) == 0) {
            continue;
        }
        ++n_run;
        try {
            run();
        } catch (const char * reason) {
            ++n_skipped;
            std::printf("%s: skipped: %s\n", name, reason);
        } catch (const std::exception & error) {
            ++n_failed;
            std::printf("%s: failed: %s\n", name, error.what());
        }
    }
    for (const auto & name : unknown) {
        std::printf("%s: there is no such test\n", name.c_str());
    }
    std::printf("%zu of %zu tests failed, %zu were skipped\n", n_failed, n_run, n_skipped);
    return !unknown.empty() ? 2 : n_failed > 0 ? 1 : n_skipped == n_run ? 77 : 0;
}
