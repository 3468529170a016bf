// The scheduler's steps: which tokens are in a batch, and how its results are booked.

#include "schedule/scheduler.h"

#include <algorithm>
#include <limits>
#include <set>
#include <string>

namespace tgr {

// For models that can reuse whole prefixes only, a prompt is also remembered this many tokens before its end: the next
// turn of a chat does not have the last few tokens, which open the reply.
static constexpr size_t before_end = 16;

//
// prompts that are in the cache already
//

Prompt Scheduler::prompt_of(const RunningTask & task) {
    const Task &   spec     = *task.task;
    const Injected injected = cache_.injected(task.job->session, spec.injection);
    if (!injected.clean) {
        throw ArgumentError("reuse needs an injection with a digest, such as a control vector, or none");
    }
    Prompt prompt;
    prompt.tokens      = spec.feed;
    prompt.digest      = injected.digest;
    prompt.norm_stride = spec.norms ? norm_stride(spec.feed.size()) : 0;
    if (spec.n_generate > 0 || spec.feed_states != FeedStates::none) { // the last token has to be decoded
        prompt.tokens.pop_back();
    }
    return prompt;
}

void Scheduler::start_reading(RunningTask & task) {
    task.prompt = prompt_of(task);
    book_reused(task, cache_.reuse(task.job->session, task.task->sequence, task.prompt));
    const size_t n = task.prompt.tokens.size();
    if (!cache_.rolls_back() && n > 4 * before_end) {
        task.marks.insert(cache_.reading().whole(uint32_t(n - before_end)));
    }
}

// Books that the task's first n tokens are in the cache.
void Scheduler::book_reused(RunningTask & task, uint32_t n) {
    if (task.task->norms) {
        const auto & norms   = sequence_of(task).norms;
        const size_t n_layer = size_t(model_.info().n_layer);
        for (size_t i = task.n_fed; i < n; ++i) {
            book_norms(task, i, norms.data() + i * n_layer);
        }
    }
    task.output->n_reused += int32_t(n - task.n_fed);
    task.n_fed = n;
}

// Whether another reader, which comes before this one or has begun, will read tokens that this one needs too.
bool Scheduler::waits_for_another(const RunningTask & task, const Runnable & readers) {
    bool comes_first = true;
    for (RunningTask * before : readers) {
        comes_first &= before != &task;
        if (before == &task || (!comes_first && before->n_placed == 0)) {
            continue;
        }
        if (!before->task->reuse || before->prompt.digest != task.prompt.digest ||
            (task.prompt.norm_stride > 0 && before->prompt.norm_stride == 0)) {
            continue;
        }
        const uint32_t n = cache_.reading().whole(n_common(before->prompt.tokens, task.prompt.tokens));
        if (n < task.n_fed + least_shared || before->n_fed >= n || (!cache_.rolls_back() && task.n_fed > 0)) {
            continue;
        }
        if (!cache_.rolls_back()) {
            before->marks.insert(n);
        }
        return true;
    }
    return false;
}

void Scheduler::share() {
    exclusive_group_   = 0;
    const auto readers = runnable(true);
    for (RunningTask * task : readers) {
        const bool reads = task->n_placed > 0 || task->n_again > 0; // has begun to read
        if (!task->task->reuse || reads || !cache_.prefixes().enabled()) {
            continue;
        }
        task->waits = waits_for_another(*task, readers);
        if (task->waits) {
            continue;
        }
        const size_t before = task->n_fed;
        book_reused(*task, cache_.reuse(task->job->session, task->task->sequence, task->prompt));
        const size_t n = std::min(task->n_fed - before, task->cells.size()); // planned cells that it no longer needs
        cache_.unplan(task->job->session, task->cells.data() + task->cells.size() - n, n);
        task->cells.resize(task->cells.size() - n);
    }
    finish_done();
}

//
// the batch
//

// Where batches must not depend on other sessions, a step decodes the tokens of one session or lockstep group. They
// take turns.
void Scheduler::choose_exclusive_group() {
    exclusive_group_ = 0;
    if (cache_.reading().block == 0) {
        return;
    }
    // a group with a task that waits for another's prompt may read, but not write
    std::set<uint64_t> groups, waiting;
    const auto         readers = runnable(true);
    for (const RunningTask * one : readers) {
        if (one->waits) {
            waiting.insert(together(*one->job));
        } else if (one->task->reuse) {
            groups.insert(together(*one->job));
        }
    }
    for (const auto & some : { readers, runnable(false) }) {
        for (const RunningTask * one : some) {
            if (waiting.count(together(*one->job)) == 0) {
                groups.insert(together(*one->job));
            }
        }
    }
    const auto next  = groups.upper_bound(last_exclusive_group_);
    exclusive_group_ = last_exclusive_group_ = next != groups.end() ? *next : groups.empty() ? 0 : *groups.begin();
}

// Schedules the next block of the first prompt that is read in blocks; false when there is none. The block is alone in
// the batch, and texts go on when all prompts are read: their batches must not depend on what was in the cache.
bool Scheduler::read_block() {
    for (RunningTask * task : runnable(true)) {
        if (task->task->reuse && !task->waits) {
            add_feed(*task, cache_.reading().next(task->n_fed, n_to_read(*task)));
            place();
            return true;
        }
    }
    return false;
}

Scheduler::Runnable Scheduler::runnable(bool feeding) const {
    Runnable some;
    for (const auto & job : jobs_) {
        if (held_back(*job) || (exclusive_group_ && together(*job) != exclusive_group_)) {
            continue;
        }
        for (const auto & task : job->running) {
            if (!task->done() && task->feeds() == feeding) {
                some.push_back(task.get());
            }
        }
    }
    return some;
}

Batch & Scheduler::schedule() {
    batch_ = {};
    choose_exclusive_group();
    const size_t n_batch = llama_n_batch(model_.context()); // llama.cpp may have lowered it to n_ctx
    const auto   writers = runnable(false);
    auto         readers = runnable(true);
    for (const auto & job : jobs_) {
        for (const auto & task : job->running) {
            task->n_in_batch = task->n_drafted = 0;
        }
    }
    if (readers.empty()) {
        plan_drafts(writers);
    }
    prompt_limited_ = false;
    if (cache_.reading().block && read_block()) {
        return batch_;
    }
    readers.erase(std::remove_if(readers.begin(), readers.end(), [](const RunningTask * r) { return r->waits; }),
                  readers.end());

    const size_t kept = readers.empty() ? 0 : std::max<size_t>(n_batch / 4, 1); // for prompts
    add_writers(writers, n_batch > kept ? n_batch - kept : ++n_steps_ % 2);

    size_t left     = std::min(n_batch - batch_.size(), most_prompt_tokens(writers, readers));
    prompt_limited_ = prompt_seconds_ > 0;
    if (left > 0 && left < readers.size()) { // a step without space for prompts does not count as a turn
        std::rotate(readers.begin(), readers.begin() + ++next_reader_ % readers.size(), readers.end());
    }
    // equal parts, so that a short prompt does not wait for a long one; the first prompts get the rest
    std::vector<size_t> parts(readers.size());
    for (size_t part = readers.empty() ? 0 : std::max<size_t>(left / readers.size(), 1), turn = 0; turn < 2; ++turn) {
        for (size_t i = 0; i < readers.size(); ++i) {
            const size_t n = std::min(turn == 0 ? part : left, n_to_read(*readers[i]) - parts[i]);
            parts[i] += std::min(n, left);
            left -= std::min(n, left);
        }
    }
    prompt_limited_ = prompt_limited_ && left == 0;
    for (size_t i = 0; i < readers.size(); ++i) {
        add_feed(*readers[i], parts[i]);
    }
    place();
    return batch_;
}

// Fed tokens that the task may decode in this step.
size_t Scheduler::n_to_read(const RunningTask & task) {
    if (task.n_again > 0) {
        return task.n_again;
    }
    const auto mark = task.marks.upper_bound(task.n_fed);
    return (mark == task.marks.end() ? task.task->feed.size() : *mark) - task.n_fed;
}

// n tokens or a few less, so that with the n_before of the batch they are a multiple of ggml's tile: a started tile
// costs as much as a whole one. n itself if fewer than `least` would be left.
static size_t whole_tiles(size_t n_before, size_t n) {
    static constexpr size_t tile = 8, least = 4;
    const size_t            rest = (n_before + n) % tile;
    return n >= rest + least ? n - rest : n;
}

// The session of a task, or its group.
uint64_t Scheduler::together(const Job & job) const {
    const auto & session = sessions_.at(job.session);
    return session.group ? session.group->serial : session.serial;
}

// The most prompt tokens of this step. They are limited so that neither texts that are written nor new requests wait
// long. A lockstep group alone reads as much as fits, because its batches must not depend on the time.
size_t Scheduler::most_prompt_tokens(const Runnable & writers, const Runnable & readers) {
    std::set<uint64_t> groups;
    bool               in_group = true;
    for (const RunningTask * one : writers) {
        groups.insert(together(*one->job));
    }
    for (const RunningTask * one : readers) {
        groups.insert(together(*one->job));
        in_group &= sessions_.at(one->job->session).group != nullptr;
    }
    const double seconds = model_.params().step_seconds;
    if (!writers.empty() && groups.size() > 1) {
        prompt_seconds_ = seconds;
        return whole_tiles(batch_.size(), size_t(prompt_tokens_));
    }
    in_group |= cache_.reading().block > 0;
    prompt_seconds_ = in_group ? 0.0 : 4 * seconds;
    return in_group ? SIZE_MAX : whole_tiles(batch_.size(), size_t(4 * prompt_tokens_));
}

void Scheduler::add_writers(const Runnable & writers, size_t most) {
    most         = std::min({ most, writers.size(), size_t(llama_n_seq_max(model_.context())) });
    next_writer_ = most < writers.size() ? next_writer_ : 0;
    for (size_t i = 0; i < most; ++i) {
        RunningTask & task = *writers[(next_writer_ + i) % writers.size()];
        batch_.rows.push_back({ &task, int32_t(batch_.size()), -1, true });
        add(task, task.next, true);
        for (size_t n = 0; n < task.n_drafted; ++n) {
            batch_.rows.push_back({ &task, int32_t(batch_.size()), -1, false, true });
            add(task, task.guesses.guess(n), true);
        }
    }
    next_writer_ += most;
}

void Scheduler::add_feed(RunningTask & task, size_t most) {
    if (task.n_again > 0) {
        const Sequence & sequence = sequence_of(task);
        for (size_t i = 0; i < most; ++i) {
            add(task, sequence.again[sequence.size() + i], false);
        }
        return;
    }
    const Task & spec   = *task.task;
    const size_t n_feed = spec.feed.size();
    // residual norms of the last layer exist for output tokens only
    const size_t stride = norm_stride(n_feed);
    const size_t n_rows = llama_n_seq_max(model_.context());
    for (size_t i = task.n_fed; i < task.n_fed + most; ++i) {
        const bool last   = i + 1 == n_feed;
        const bool sample = last && spec.n_generate > 0;
        const bool read   = sample || spec.feed_states == FeedStates::all ||
                            (last && spec.feed_states == FeedStates::last) || (!last && spec.feed_logprobs);
        const bool output = read || (spec.norms && i % stride == 0);
        if (output && batch_.rows.size() >= n_rows) {
            break;
        }
        if (output) {
            batch_.rows.push_back({ &task, int32_t(batch_.size()), int32_t(i), sample });
        }
        add(task, spec.feed[i], output);
    }
}

void Scheduler::add(RunningTask & task, llama_token token, bool output) {
    const Task & spec = *task.task;
    if (task.n_in_batch == 0) {
        task.first_in_batch = batch_.size();
        batch_.states |= spec.states || spec.feed_states != FeedStates::none;
        batch_.norms |= spec.norms && task.feeds();
        const auto job = task.job->shared_from_this();
        if (std::find(batch_.jobs.begin(), batch_.jobs.end(), job) == batch_.jobs.end()) {
            batch_.jobs.push_back(job);
        }
    }
    const bool plain = task.feeds() && task.n_fed + task.n_in_batch + spec.n_plain >= spec.feed.size();
    batch_.tokens.push_back(token);
    batch_.positions.push_back(llama_pos(sequence_of(task).size() + task.n_in_batch));
    batch_.sequences.push_back(spec.sequence);
    batch_.output.push_back(output);
    batch_.injections.push_back(plain ? spec.plain : spec.injection);
    ++task.n_in_batch;
}

// Sets the cells of the tokens, and the cells to which each token attends.
void Scheduler::place() {
    batch_.cells.resize(batch_.size());
    batch_.view_of.resize(batch_.size());
    batch_.each_task([&](const RunningTask & task) {
        CellList view = sequence_of(task).cells;
        for (size_t i = 0; i < task.n_in_batch; ++i) {
            const uint32_t cell = task.cells[task.n_placed + i];
            view.push(cell);
            batch_.cells[task.first_in_batch + i]   = cell;
            batch_.view_of[task.first_in_batch + i] = int32_t(batch_.views.size());
        }
        batch_.views.push_back(view.runs());
    });
}

//
// the results of a batch
//

void Scheduler::undo() {
    batch_.each_task([&](const RunningTask & task) { cache_.undo_decode(task.job->session, task.task->sequence); });
}

void Scheduler::fail(int32_t status) {
    const auto error = std::make_exception_ptr(Error("llama_decode failed with status ", status));
    for (const auto & job : batch_.jobs) {
        finish(job, error);
    }
}

void Scheduler::book_decode(double seconds) {
    batch_.each_task([&](RunningTask & task) {
        const uint64_t session  = task.job->session;
        const int32_t  sequence = task.task->sequence;
        for (size_t i = 0; i + task.n_drafted < task.n_in_batch; ++i) {
            book_position(task, task.first_in_batch + i);
        }
        n_drafted_ += task.n_drafted;
        if (task.n_again > 0) {
            n_read_again_ += task.n_in_batch;
            task.n_again -= task.n_in_batch;
            if (task.n_again == 0) {
                sequence_of(task).again.clear();
            }
        } else if (task.feeds()) {
            if (task.task->norms) {
                read_norms(task);
            }
            task.n_fed += task.n_in_batch;
            if (batch_.size() == cache_.reading().block && task.n_in_batch == batch_.size()) {
                cache_.note_block(session, sequence);
            }
            if (task.marks.count(task.n_fed)) {
                cache_.remember(session, sequence);
            }
        }
    });
    if (prompt_limited_) {
        // goes half of the way to what fits in nine tenths of the time, so that one slow step does not decide
        const double fitting = prompt_tokens_ * std::clamp(0.9 * prompt_seconds_ / seconds, 0.25, 4.0);
        prompt_tokens_       = std::clamp((prompt_tokens_ + fitting) / 2, 4.0, double(model_.params().n_batch));
    }
}

// Adds a decoded token of the batch to its text.
void Scheduler::book_position(RunningTask & task, size_t at) {
    const uint64_t session = task.job->session;
    cache_.append(session, sequence_of(task), batch_.tokens[at], task.cells[task.n_placed++],
                  cache_.injected(session, batch_.injections[at]));
    task.output->n_decoded += task.n_again == 0;
}

// The residual norms of the fed tokens of this step; those of the last layer at every stride-th only, as for a prompt
// that is reused.
void Scheduler::read_norms(RunningTask & task) {
    const int32_t      n_layer = model_.info().n_layer;
    std::vector<float> norms(n_layer);
    for (size_t i = 0; i < task.n_in_batch; ++i) {
        for (int32_t layer = 0; layer < n_layer; ++layer) {
            norms[layer] = model_.norm(layer, int32_t(task.first_in_batch + i));
        }
        if ((task.n_fed + i) % norm_stride(task.task->feed.size()) != 0) {
            norms.back() = -1.0f;
        }
        book_norms(task, task.n_fed + i, norms.data());
        if (task.task->reuse) {
            auto & known = sequence_of(task).norms;
            known.insert(known.end(), norms.begin(), norms.end());
        }
    }
}

// Outputs those of fed token i, the next one.
void Scheduler::book_norms(RunningTask & task, size_t i, const float * norms) {
    const size_t n_layer = size_t(model_.info().n_layer);
    const bool   last    = i % norm_stride(task.task->feed.size()) == 0;
    for (size_t layer = 0; layer < n_layer; ++layer) {
        const bool measured = norms[layer] >= 0.0f && (last || layer + 1 < n_layer);
        task.output->norms.values->push_back(measured ? norms[layer] : std::numeric_limits<float>::quiet_NaN());
    }
}

void Scheduler::book_rows() {
    for (Row & row : batch_.rows) {
        const auto it =
            std::find_if(jobs_.begin(), jobs_.end(), [&](const auto & job) { return job.get() == row.task->job; });
        if (it == jobs_.end() || (row.draft && row.task->ended)) { // it failed, or ended, at an earlier row
            continue;
        }
        if (row.error) {
            finish(*it, row.error);
            continue;
        }
        book_row(row);
    }
    drop_drafts();
}

// Writes what the task asked for into its output.
void Scheduler::book_row(Row & row) {
    const Task &  task   = *row.task->task;
    Output &      output = *row.task->output;
    const float * state  = model_.state(row.batch_index);
    const auto    append = [&](Array<float> & to) {
        to.values->insert(to.values->end(), state, state + model_.info().n_embd);
    };
    if (row.feed_index >= 0) {
        const bool last = size_t(row.feed_index) + 1 == task.feed.size();
        if (task.feed_states == FeedStates::all || (last && task.feed_states == FeedStates::last)) {
            append(output.feed_states);
        }
        if (task.feed_logprobs && !last) {
            output.feed_logprobs.values->push_back(
                float(row.logits[task.feed[row.feed_index + 1]] - row.stats.log_sum_exp));
        }
    }
    if (row.sample) {
        book_guess(row);
        output.logprobs.values->push_back(float(row.logits[row.draw.token] - row.stats.log_sum_exp));
        output.sampled_logprobs.values->push_back(row.draw.logprob);
        output.entropies.values->push_back(row.stats.entropy);
        if (task.states) {
            append(output.states);
        }
        book_token(row);
    }
}

// Whether one of the stop texts ends within the newest bytes of a text.
static bool ends_within(const std::string & text, size_t n_newest, const std::vector<std::string> & stops) {
    for (const auto & stop : stops) {
        for (size_t end = std::max(text.size() - n_newest + 1, stop.size()); end <= text.size(); ++end) {
            if (text.compare(end - stop.size(), stop.size(), stop) == 0) {
                return true;
            }
        }
    }
    return false;
}

// Books a sampled token and decides whether the task goes on.
void Scheduler::book_token(Row & row) {
    RunningTask &     task   = *row.task;
    const Task &      spec   = *task.task;
    Output &          output = *task.output;
    const llama_token token  = row.draw.token;
    output.tokens.values->push_back(token);
    for (const auto & [id, logprob] : row.top) {
        output.top_ids.values->push_back(id);
        output.top_logprobs.values->push_back(logprob);
    }
    task.next = token;

    const bool ends = !spec.ignore_eog && llama_vocab_is_eog(model_.vocab(), token);
    bool       stop = ends;
    if (!spec.stop.empty() && !ends) {
        const std::string piece = model_.detokenize({ token }, false, spec.shown);
        task.tail += piece;
        stop = ends_within(task.tail, piece.size(), spec.stop);
        if (task.tail.size() > 2 * task.tail_most + 1024) { // seldom: it moves all that remains
            task.tail.erase(0, task.tail.size() - task.tail_most);
        }
    }
    if (stop || output.tokens.values->size() >= size_t(spec.n_generate)) {
        output.finish = stop ? Finish::stop : Finish::length;
        task.ended    = true;
    }
}

void Scheduler::finish_done() {
    const auto jobs = jobs_;
    for (const auto & job : jobs) {
        if (std::all_of(job->running.begin(), job->running.end(), [](const auto & task) { return task->done(); })) {
            finish(job, nullptr);
        } else if (job->in_batch) {
            job->notify();
        }
    }
}

} // namespace tgr
