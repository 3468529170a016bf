// The module _chat: llama.cpp's chat templates, its parsers of replies, and its grammars, without its models.
//
// Templates, tools and replies are foreign: this runs in a process with limits (tgr_local/system/confined_worker.py).
// Values go in as JSON text, as llama.cpp reads them.
#include "chat.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <string>

namespace py = pybind11;

namespace {

// Cut by bytes, a text may end inside a character.
py::str text_of(const std::string & bytes) {
    PyObject * text = PyUnicode_DecodeUTF8(bytes.data(), py::ssize_t(bytes.size()), "replace");
    if (!text) {
        throw py::error_already_set();
    }
    return py::reinterpret_steal<py::str>(text);
}

template <class Texts> py::list texts_of(const Texts & texts) {
    py::list list;
    for (const auto & text : texts) {
        list.append(text_of(text));
    }
    return list;
}

py::dict reply_of(const common_chat_msg & message) {
    py::list calls;
    for (const auto & call : message.tool_calls) {
        py::dict one;
        one["id"]        = text_of(call.id);
        one["name"]      = text_of(call.name);
        one["arguments"] = text_of(call.arguments);
        calls.append(one);
    }
    py::dict reply;
    reply["content"]  = text_of(message.render_content());
    reply["thinking"] = text_of(message.reasoning_content);
    reply["calls"]    = calls;
    return reply;
}

// Reads replies to one prompt.
class Parser {
public:
    Parser(int format, const std::string & parser, const std::string & generation_prompt) {
        params_.format            = common_chat_format(format);
        params_.reasoning_format  = COMMON_REASONING_FORMAT_AUTO;
        params_.generation_prompt = generation_prompt;
        if (!parser.empty()) {
            params_.parser.load(parser);
        }
    }

    py::dict parse(const std::string & text, bool is_partial) const {
        return reply_of(common_chat_parse(text, is_partial, params_));
    }

private:
    common_chat_parser_params params_;
};

class Template {
public:
    Template(const std::string & source, const std::string & bos, const std::string & eos) {
        const common_chat_template one(source, bos, eos); // the function below would hide why it fails
        templates_ = common_chat_templates_init(nullptr, source, bos, eos);
    }

    py::dict apply(const std::string & request) const {
        const common_chat_params params = common_chat_templates_apply(templates_.get(), inputs_of(request));
        py::list                 triggers;
        for (const auto & trigger : params.grammar_triggers) {
            triggers.append(trigger_of(trigger));
        }
        py::dict result;
        result["prompt"]            = text_of(params.prompt);
        result["generation_prompt"] = text_of(params.generation_prompt);
        result["grammar"]           = text_of(params.grammar);
        result["lazy"]              = params.grammar_lazy;
        result["triggers"]          = triggers;
        result["think_tag"]         = text_of(params.thinking_start_tag);
        result["think_ends"]        = texts_of(params.thinking_end_tags);
        result["shown"]             = texts_of(params.preserved_tokens);
        result["stop"]              = texts_of(params.additional_stops);
        result["format"]            = int(params.format);
        result["parser"]            = text_of(params.parser);
        return result;
    }

    std::map<std::string, bool> abilities() const { return common_chat_templates_get_caps(templates_.get()); }

private:
    common_chat_templates_ptr templates_;

    // Its kind and its text.
    static py::tuple trigger_of(const common_grammar_trigger & trigger) {
        if (trigger.type == COMMON_GRAMMAR_TRIGGER_TYPE_PATTERN_FULL) {
            return py::make_tuple("pattern", text_of("^(?:" + trigger.value + ")$"));
        }
        const bool is_pattern = trigger.type == COMMON_GRAMMAR_TRIGGER_TYPE_PATTERN;
        return py::make_tuple(is_pattern ? "pattern" : "word", text_of(trigger.value));
    }

    common_chat_templates_inputs inputs_of(const std::string & text) const {
        const auto                   request = common_json::parse(text);
        common_chat_templates_inputs inputs;
        inputs.messages    = common_chat_msgs_parse_oaicompat(request.at("messages"));
        inputs.tools       = common_chat_tools_parse_oaicompat(request.value("tools", common_json()));
        inputs.tool_choice = common_chat_tool_choice_parse_oaicompat(request.value("tool_choice", "auto"));
        if (request.contains("continued")) { // the part of the last message that the reply goes on with
            inputs.continue_final_message = common_chat_continuation_parse(request.at("continued"));
        }
        inputs.enable_thinking    = request.value("thinking", true);
        inputs.reasoning_format   = common_reasoning_format_from_name(request.value("reasoning_format", "auto"));
        inputs.force_pure_content = request.value("only_prompt", false);
        inputs.parallel_tool_calls =
            request.contains("parallel")
                ? request.at("parallel").get<bool>()
                : common_chat_templates_get_caps(templates_.get())["supports_parallel_tool_calls"];
        if (request.contains("variables")) {
            for (const auto & [name, value] : request.at("variables").items()) {
                inputs.chat_template_kwargs[name] = value.dump();
            }
        }
        return inputs;
    }
};

} // namespace

PYBIND11_MODULE(_chat, m) {
    m.doc() = "llama.cpp's chat templates and parsers. Use tgr_local.system.confined, which runs them with limits.";
    py::class_<Template>(m, "Template")
        .def(py::init<const std::string &, const std::string &, const std::string &>(), py::arg("source"),
             py::arg("bos"), py::arg("eos"))
        .def("apply", &Template::apply,
             "A request, as JSON, in the template: the prompt, and how replies are written and read.",
             py::arg("request"))
        .def("abilities", &Template::abilities, "What the template can express, by llama.cpp's names.");
    py::class_<Parser>(m, "Parser")
        .def(py::init<int, const std::string &, const std::string &>(), py::arg("format"), py::arg("parser"),
             py::arg("prefix"))
        .def("parse", &Parser::parse, "A reply, or its beginning where it is partial, as text, thinking and calls.",
             py::arg("text"), py::arg("partial"));
}
