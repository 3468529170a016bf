// What llama.cpp's chat code calls of the rest of llama.cpp: its text functions, as there, and stand-ins for its log
// and its models, which are never asked for a template here.
#include "common.h"
#include "log.h"

#include <cstdarg>
#include <cstdio>
#include <stdexcept>

//
// text
//

std::string string_join(const std::vector<std::string> & values, const std::string & separator) {
    std::string joined;
    for (size_t i = 0; i < values.size(); ++i) {
        joined += (i > 0 ? separator : "") + values[i];
    }
    return joined;
}

std::vector<std::string> string_split(const std::string & text, const std::string & delimiter) {
    std::vector<std::string> parts;
    size_t                   start = 0;
    for (size_t end; (end = text.find(delimiter, start)) != std::string::npos; start = end + delimiter.size()) {
        parts.push_back(text.substr(start, end - start));
    }
    parts.push_back(text.substr(start));
    return parts;
}

std::string string_repeat(const std::string & text, size_t n) {
    std::string repeated;
    for (size_t i = 0; i < n; ++i) {
        repeated += text;
    }
    return repeated;
}

void string_replace_all(std::string & text, const std::string & search, const std::string & replace) {
    if (!search.empty()) {
        text = string_join(string_split(text, search), replace);
    }
}

//
// the log: nobody reads it
//

int common_log_get_verbosity_thold() {
    return -1;
}

struct common_log * common_log_main() {
    return nullptr;
}

void common_log_add(struct common_log *, ggml_log_level, const char *, ...) {}

//
// ggml and its models
//

extern "C" {

void ggml_abort(const char *, int, const char * format, ...) {
    char    text[256];
    va_list values;
    va_start(values, format);
    std::vsnprintf(text, sizeof(text), format, values);
    va_end(values);
    throw std::runtime_error(text);
}

[[noreturn]] static void no_model() {
    throw std::runtime_error("chat templates are given as text here, never by a model");
}

const char * llama_model_chat_template(const llama_model *, const char *) {
    no_model();
}

const llama_vocab * llama_model_get_vocab(const llama_model *) {
    no_model();
}

llama_token llama_vocab_bos(const llama_vocab *) {
    no_model();
}

llama_token llama_vocab_eos(const llama_vocab *) {
    no_model();
}

bool llama_vocab_get_add_bos(const llama_vocab *) {
    no_model();
}

bool llama_vocab_get_add_eos(const llama_vocab *) {
    no_model();
}

int32_t llama_chat_apply_template(const char *, const llama_chat_message *, size_t, bool, char *, int32_t) {
    no_model();
}

} // extern "C"

std::vector<llama_token> common_tokenize(const llama_vocab *, const std::string &, bool, bool) {
    no_model();
}

std::string common_token_to_piece(const llama_vocab *, llama_token, bool) {
    no_model();
}
