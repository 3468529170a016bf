// Python's Task and Sampling records (tgr_local/engine), read by the names of their fields.
#include "bindings/bindings.h"

#include <algorithm>

namespace tgr {

std::vector<llama_token> tokens_of(const py::object & values) {
    using Wide        = py::array_t<int64_t, py::array::c_style | py::array::forcecast>;
    const auto given  = in_python([&] { return py::array::ensure(values); });
    const auto refuse = [] { throw py::value_error("tokens must be one sequence of whole numbers, each below 2^31"); };
    if (!given || given.ndim() != 1 ||
        (given.size() > 0 && given.dtype().kind() != 'i' && given.dtype().kind() != 'u')) {
        refuse();
    }
    const auto wide = in_python([&] { return Wide(given); });
    const auto fits = [](int64_t token) { return token == int64_t(llama_token(token)); };
    if (!std::all_of(wide.data(), wide.data() + wide.size(), fits)) {
        refuse();
    }
    return std::vector<llama_token>(wide.data(), wide.data() + wide.size());
}

// TypeError for a value of another type.
template <class T> static void read(const py::handle & record, const char * name, T & field) {
    const py::object value = record.attr(name);
    try {
        field = value.cast<T>();
    } catch (const py::cast_error &) {
        throw py::type_error(std::string(name) + " cannot be " + py::repr(value).cast<std::string>());
    }
}

static void read(const py::handle & record, const char * name, std::vector<llama_token> & field) {
    field = tokens_of(record.attr(name));
}

static void read(const py::handle & record, const char * name, FeedStates & field) {
    const auto value = record.attr(name).cast<std::string>();
    field            = value == "all" ? FeedStates::all : value == "last" ? FeedStates::last : FeedStates::none;
}

static void read(const py::handle & record, const char * name, SamplingParams & field) {
    const py::object sampling = record.attr(name);
    read(sampling, "temperature", field.temperature);
    read(sampling, "top_k", field.top_k);
    read(sampling, "top_p", field.top_p);
    read(sampling, "min_p", field.min_p);
    read(sampling, "top_n_sigma", field.top_n_sigma);
    read(sampling, "typical_p", field.typical_p);
    read(sampling, "dynatemp_range", field.dynatemp_range);
    read(sampling, "dynatemp_exponent", field.dynatemp_exponent);
    read(sampling, "repeat_penalty", field.repeat_penalty);
    read(sampling, "frequency_penalty", field.frequency_penalty);
    read(sampling, "presence_penalty", field.presence_penalty);
    read(sampling, "repeat_last_n", field.repeat_last_n);
    read(sampling, "xtc_probability", field.xtc_probability);
    read(sampling, "xtc_threshold", field.xtc_threshold);
    read(sampling, "dry_multiplier", field.dry.multiplier);
    if (field.dry.multiplier != 0.0f) { // most samplers are without
        read(sampling, "dry_base", field.dry.base);
        read(sampling, "dry_allowed_length", field.dry.allowed_length);
        read(sampling, "dry_penalty_last_n", field.dry.last_n);
        read(sampling, "dry_sequence_breakers", field.dry.breakers);
    }
    read(sampling, "grammar", field.grammar);
    read(sampling, "grammar_prefix", field.grammar_prefix);
    if (const py::object trigger = sampling.attr("trigger"); !trigger.is_none()) {
        field.trigger.emplace();
        read(trigger, "words", field.trigger->words);
        read(trigger, "patterns", field.trigger->patterns);
        read(trigger, "think_tag", field.trigger->think_tag);
        read(trigger, "think_ends", field.trigger->think_ends);
    }
    read(sampling, "logit_bias", field.logit_bias);
}

static Task task_of(const py::handle & record) {
    Task task;
    read(record, "feed", task.feed);
    read(record, "history", task.history);
    read(record, "grammar_history", task.grammar_history);
    read(record, "tail", task.tail);
    read(record, "n_generate", task.n_generate);
    read(record, "plain", task.n_plain);
    read(record, "reuse", task.reuse);
    read(record, "sampling", task.sampling);
    read(record, "seed", task.seed);
    read(record, "part", task.part);
    read(record, "seeds", task.seeds);
    read(record, "stop", task.stop);
    read(record, "shown", task.shown);
    read(record, "ignore_eog", task.ignore_eog);
    read(record, "drafts", task.drafts);
    read(record, "states", task.states);
    read(record, "feed_states", task.feed_states);
    read(record, "feed_logprobs", task.feed_logprobs);
    read(record, "norms", task.norms);
    read(record, "n_top", task.n_top);
    return task;
}

std::vector<Task> tasks_of(const py::sequence & records, const std::vector<int32_t> & sequences,
                           const std::vector<int32_t> & injections, int32_t plain) {
    if (sequences.size() != records.size() || injections.size() != records.size()) {
        throw py::value_error("each task needs a sequence and an injection");
    }
    std::vector<Task> tasks;
    for (size_t i = 0; i < records.size(); ++i) {
        tasks.push_back(task_of(records[i]));
        tasks.back().sequence  = sequences[i];
        tasks.back().injection = injections[i];
        tasks.back().plain     = plain;
    }
    return tasks;
}

} // namespace tgr
