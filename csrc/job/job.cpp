#include "job/job.h"

#include "base/errors.h"

#include <algorithm>
#include <chrono>

namespace tgr {

Job::Job(std::vector<Task> given) :
    tasks(std::move(given)),
    outputs_(tasks.size()),
    n_published_(tasks.size()),
    new_tokens_(tasks.size()),
    parts_(tasks.size()) {
    done_ = tasks.empty();
}

using Seconds = std::chrono::duration<double>;

bool Job::wait(double seconds) {
    std::unique_lock lock(mutex_);
    return ended_.wait_for(lock, Seconds(seconds), [&] { return done_; });
}

Job::News Job::take(double seconds, size_t least) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, Seconds(seconds), [&] { return done_ || n_new_ >= least; });
    News news{ std::vector<std::vector<llama_token>>(tasks.size()), done_ };
    news.tokens.swap(new_tokens_);
    n_new_ = 0;
    return news;
}

Output Job::take_part(size_t task, size_t n) {
    std::lock_guard lock(mutex_);
    Parts &         parts = parts_.at(task);
    Output          part  = parts.left.split(n);
    const bool      last  = done_ && parts.left.tokens.values->empty();
    part.finish           = last ? outputs_[task].finish : Finish::length;
    // the newest token is not decoded yet
    const bool first = parts.n_decoded == 0;
    part.n_reused    = first ? outputs_[task].n_reused : 0;
    part.n_decoded =
        last ? outputs_[task].n_decoded - parts.n_decoded
             : int32_t(part.tokens.values->size() + (first ? tasks[task].feed.size() - 1 : 0)) - part.n_reused;
    parts.n_decoded += part.n_decoded;
    part.n_refused = parts.left.n_refused - parts.n_refused;
    parts.n_refused += part.n_refused;
    return part;
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

// With the mutex held.
void Job::publish() {
    for (size_t i = 0; i < tasks.size(); ++i) {
        const auto & tokens = *outputs_[i].tokens.values;
        new_tokens_[i].insert(new_tokens_[i].end(), tokens.begin() + ptrdiff_t(n_published_[i]), tokens.end());
        n_new_ += tokens.size() - n_published_[i];
        if (tasks[i].part > 0) {
            parts_[i].left.append(outputs_[i], n_published_[i]);
            parts_[i].left.n_refused = outputs_[i].n_refused; // so far
        }
        n_published_[i] = tokens.size();
    }
}

void Job::notify() {
    {
        std::lock_guard lock(mutex_);
        publish();
    }
    changed_.notify_all();
}

void Job::end(std::exception_ptr error) {
    {
        std::lock_guard lock(mutex_);
        error_ = std::move(error);
        try {
            publish();
        } catch (...) { // no memory
            error_ = std::current_exception();
        }
        done_ = true;
    }
    changed_.notify_all();
    ended_.notify_all();
}

void check_tokens(const char * where, const std::vector<llama_token> & tokens, int32_t n_vocab) {
    for (const llama_token token : tokens) {
        if (token < 0 || token >= n_vocab) {
            throw ArgumentError(where, " holds token ", token, ", but the vocabulary ends at ", n_vocab - 1);
        }
    }
}

static std::unique_ptr<Sampler> sampler_of(const Task & task, const TokenTexts & texts, size_t n_tasks,
                                           const Sampler * like) {
    auto sampler = std::make_unique<Sampler>(texts, task.sampling, task.seed, n_tasks, like);
    sampler->reseed_every(task.part, task.seeds);
    check_tokens("history", task.history, texts.n_tokens());
    check_tokens("grammar_history", task.grammar_history, texts.n_tokens());
    for (const auto * tokens : { &task.history, &task.feed }) {
        for (const llama_token token : *tokens) {
            sampler->accept_prompt(token);
        }
    }
    sampler->accept_grammar(task.grammar_history);
    return sampler;
}

void Job::prepare(const TokenTexts & texts, const ModelInfo & info) {
    const Sampler * last = nullptr;
    for (size_t i = 0; i < tasks.size(); ++i) {
        const Task & task   = tasks[i];
        auto         made   = std::make_unique<RunningTask>();
        Output &     output = outputs_[i];
        made->job           = this;
        made->task          = &task;
        made->output        = &output;
        made->tail          = task.tail;
        check_tokens("feed", task.feed, texts.n_tokens());
        for (const auto & text : task.stop) {
            made->tail_most = std::max(made->tail_most, text.size());
        }
        if (task.n_generate > 0) {
            made->sampler = sampler_of(task, texts, tasks.size(), last);
            last          = made->sampler.get();
        }
        output.states.width       = info.n_embd;
        output.feed_states.width  = info.n_embd;
        output.norms.width        = info.n_layer;
        output.top_ids.width      = task.n_top;
        output.top_logprobs.width = task.n_top;
        running.push_back(std::move(made));
    }
}

} // namespace tgr
