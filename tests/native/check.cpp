#include "check.h"

TEST(a_check_that_fails_says_where_and_what) {
    const auto what = [](auto check) -> std::string {
        try {
            check();
            return "";
        } catch (const std::exception & error) {
            const std::string_view text = error.what();
            return std::string(text.substr(text.find("check.cpp")));
        }
    };
    const std::vector<uint8_t> bytes{ 7, 255 };
    const std::string          line = std::to_string(__LINE__ + 1);
    CHECK_EQ(what([] { CHECK(1 > 2); }), "check.cpp:" + line + ": 1 > 2");
    CHECK_EQ(what([&] { CHECK_EQ(bytes, std::vector<uint8_t>{ 7, 8 }); }).substr(13), " bytes is [7, 255], not [7, 8]");
    CHECK_EQ(what([] { CHECK_EQ(std::string("a"), "b"); }).substr(13), " std::string(\"a\") is \"a\", not \"b\"");
    CHECK_EQ(what([&] { CHECK_EQ(bytes, std::vector<uint8_t>{ 7, 255 }); }), "");
}
