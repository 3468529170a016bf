#include "job.h"

#include "errors.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>

namespace tgr {

Job::Job(std::vector<Task> given) : tasks(std::move(given)), outputs_(tasks.size()), new_tokens_(tasks.size()) {
    done_ = tasks.empty();
}

static std::chrono::duration<double> span(double seconds) {
    return std::chrono::duration<double>(seconds);
}

bool Job::wait(double seconds) {
    std::unique_lock lock(mutex_);
    return ended_.wait_for(lock, span(seconds), [&] { return done_; });
}

std::vector<std::vector<llama_token>> Job::take(double seconds) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, span(seconds), [&] {
        return done_ || std::any_of(new_tokens_.begin(), new_tokens_.end(), [](const auto & t) { return !t.empty(); });
    });
    std::vector<std::vector<llama_token>> taken(new_tokens_.size());
    taken.swap(new_tokens_);
    return taken;
}

const std::vector<Output> & Job::outputs() {
    std::unique_lock lock(mutex_);
    if (!done_) {
        throw Error("the job is still running; wait for it first");
    }
    if (error_) {
        std::rethrow_exception(error_);
    }
    return outputs_;
}

void Job::add_new(size_t task, llama_token token) {
    std::lock_guard lock(mutex_);
    new_tokens_[task].push_back(token);
}

void Job::end(std::exception_ptr error) {
    std::lock_guard lock(mutex_);
    error_ = std::move(error);
    done_  = true;
    changed_.notify_all();
    ended_.notify_all();
}

void check_token(const char * where, llama_token token, int32_t n_vocab) {
    if (token < 0 || token >= n_vocab) {
        throw std::invalid_argument(std::string(where) + " holds token " + std::to_string(token) +
                                    ", but the vocabulary ends at " + std::to_string(n_vocab - 1));
    }
}

static std::unique_ptr<Sampler> sampler_of(const Task & task, const llama_vocab * vocab, int32_t n_vocab,
                                           size_t n_tasks) {
    auto sampler = std::make_unique<Sampler>(vocab, task.sampling, task.seed, n_tasks);
    for (const auto * tokens : { &task.history, &task.feed }) {
        for (const llama_token token : *tokens) {
            check_token(tokens == &task.feed ? "feed" : "history", token, n_vocab);
            sampler->accept_prompt(token);
        }
    }
    for (const llama_token token : task.grammar_history) {
        check_token("grammar_history", token, n_vocab);
    }
    sampler->accept_grammar(task.grammar_history);
    return sampler;
}

void Job::prepare(const llama_vocab * vocab, const ModelInfo & info) {
    for (size_t i = 0; i < tasks.size(); ++i) {
        const Task & task   = tasks[i];
        auto         made   = std::make_unique<RunningTask>();
        Output &     output = outputs_[i];
        made->task          = &task;
        made->output        = &output;
        made->index         = i;
        made->tail          = task.tail;
        for (const auto & text : task.stop) {
            made->tail_most = std::max(made->tail_most, text.size());
        }
        if (task.n_generate > 0) {
            made->sampler = sampler_of(task, vocab, info.n_vocab, tasks.size());
        }
        output.states.width       = info.n_embd;
        output.feed_states.width  = info.n_embd;
        output.top_ids.width      = task.n_top;
        output.top_logprobs.width = task.n_top;
        if (task.norms) {
            output.norm_sums.values->assign(info.n_layer, 0.0);
            output.norm_counts.values->assign(info.n_layer, 0.0);
        }
        running.push_back(std::move(made));
    }
}

} // namespace tgr
