// The grammars of calls, in place of llama.cpp's common/json-schema-to-grammar.cpp: rules as its formats make them,
// without its converter of schemas. Where a format has JSON of a schema, the grammar names a rule that Python adds,
// which the schema itself carries as a mark: tgr_local/generation/schemas/functions.py writes the marks and the rules.
#include "common.h"
#include "json-schema-to-grammar.h"
#include "peg-parser.h"

#include <map>
#include <stdexcept>
#include <utility>

namespace {

// Breaks between the parts of JSON; the rules that Python adds name it too.
const char * SPACE = R"(| " " | "\n"{1,2} [ \t]{0,20})";

// A number and the inside of a text that every reader of JSON can read: no float overflows, no control character stands
// in a text as it is, no space is escaped.
const char * NUMBER = R"("-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]{1,16})? ([eE] [-+]? [0-9]{1,2})?)";
const char * TEXT   = R"(( [^"\\\x7F\x00-\x1F] | "\\" ( ["\\/bfnrt] | "u" [0-9a-fA-F]{4} ) )*)";

template <class T> const T & as(const common_chat_schema & schema) {
    return static_cast<const T &>(schema);
}

const char * UNMARKED = "tgr-unmarked"; // no grammar has this rule, so that one that names it is refused

std::string name_of(const std::string & mark) {
    const bool is_mark = mark.find_first_not_of("0123456789") == std::string::npos && mark != "" && mark != "0";
    return is_mark ? "tgr-" + mark : UNMARKED;
}

std::string text_of(const common_json & value) {
    return value.is_string() ? value.get<std::string>() : value.dump();
}

// The rule that a schema's mark names. A mark stands where the kind of schema has room: a constant is one, as is the
// first value of an enum, the constant of an object's further properties, and the least number of items of an array.
std::string rule_of(const common_chat_schema & schema) {
    switch (schema.kind()) {
    case common_chat_schema::KIND_CONST:
        return name_of(as<common_chat_schema_const>(schema).value.dump());
    case common_chat_schema::KIND_ENUM:
        return name_of(text_of(as<common_chat_schema_enum>(schema).values.at(0)));
    case common_chat_schema::KIND_ARRAY:
        return name_of(std::to_string(as<common_chat_schema_array>(schema).min_items));
    case common_chat_schema::KIND_OBJECT: {
        const auto & additional = as<common_chat_schema_object>(schema).additional_properties;
        return additional ? rule_of(*additional) : UNMARKED;
    }
    case common_chat_schema::KIND_ANY_OF: {
        std::vector<std::string> rules;
        for (const auto & child : as<common_chat_schema_any_of>(schema).children) {
            rules.push_back(rule_of(*child));
        }
        return "(" + string_join(rules, " | ") + ")";
    }
    case common_chat_schema::KIND_ANY:
        return "tgr-value";
    default:
        return UNMARKED;
    }
}

// What a parser writes as its rule.
template <class Make> std::string body_of(const Make & make) {
    std::string                  body;
    const common_grammar_builder builder{
        [&](const std::string & name, const std::string & rule) {
            if (name != "root" || body.empty()) {
                body = rule;
            }
            return name;
        },
        [](const std::string &, const common_chat_schema &) { return std::string(); },
    };
    build_peg_parser(make).build_grammar(builder);
    return body;
}

// What llama.cpp writes for a number and a text of JSON, and what stands there instead.
const std::map<std::string, std::string> & stricter() {
    static const std::map<std::string, std::string> made = {
        { body_of([](common_peg_parser_builder & p) { return p.json_number(); }), NUMBER },
        { body_of([](common_peg_parser_builder & p) { return p.string_content('"'); }), TEXT },
    };
    return made;
}

class Rules {
public:
    Rules() : rules_{ { "space", SPACE } } {}

    // Returns the rule's name: another one if a different rule has it.
    std::string add(const std::string & name, std::string rule) {
        for (const auto & [loose, strict] : stricter()) {
            string_replace_all(rule, loose, strict);
        }
        const std::string plain = plain_name(name);
        std::string       free  = plain;
        for (int i = 0; rules_.count(free) && rules_.at(free) != rule; ++i) {
            free = plain + std::to_string(i);
        }
        rules_[free] = std::move(rule);
        return free;
    }

    std::string text() const {
        std::string made;
        for (const auto & [name, rule] : rules_) {
            made += name + " ::= " + rule + "\n";
        }
        return made;
    }

private:
    std::map<std::string, std::string> rules_;

    static std::string plain_name(const std::string & name) {
        std::string plain;
        for (const char c : name) {
            if (isalnum((unsigned char)c) || c == '-') {
                plain += c;
            } else if (plain.empty() || plain.back() != '-') {
                plain += '-';
            }
        }
        return plain;
    }
};

} // namespace

std::string gbnf_format_literal(const std::string & literal) {
    static const std::map<char, std::string> escapes = {
        { '\r', "\\r" }, { '\n', "\\n" }, { '"', "\\\"" }, { '\\', "\\\\" }
    };
    std::string made = "\"";
    for (const char c : literal) {
        const auto escape = escapes.find(c);
        made += escape == escapes.end() ? std::string(1, c) : escape->second;
    }
    return made + "\"";
}

std::string build_grammar(const std::function<void(const common_grammar_builder &)> & fill,
                          const common_grammar_options &) {
    Rules rules;
    fill({
        [&](const std::string & name, const std::string & rule) { return rules.add(name, rule); },
        [](const std::string &, const common_chat_schema & schema) { return rule_of(schema); },
    });
    return rules.text();
}

std::string json_schema_to_grammar(const common_json &, bool) {
    throw std::runtime_error("a reply's schema is given as a grammar here, never to a chat template");
}
