// The drafts of a batch: which texts get how many rows for them, and what becomes of these.

#include "scheduler.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace tgr {

static constexpr size_t WIDEST     = 64;                     // batch that holds drafts
static constexpr size_t MOST_TEXTS = DraftModel::MOST_TEXTS; // with more of them a row costs as much as a token
static constexpr size_t MOST_READ  = 1 << 16;                // tokens that a step looks at, for all texts together
static constexpr double SLOWEST    = 1.25; // a step that texts of others share, as a multiple of the one without drafts
static constexpr size_t TRIAL      = 8;    // guesses of the draft model that are compared only
static constexpr size_t LEAST_READ = 16;   // tokens of a prompt that the draft model reads at a time
static constexpr double LEAST_TEXT = 10.0; // time of a text, as a multiple of what the draft model reads it in

// The session, or all of its group in the order of their indices, which no arrival changes.
std::vector<uint64_t> Scheduler::together_with(uint64_t session) const {
    const auto & group = sessions_.at(session).group;
    if (!group) {
        return { session };
    }
    std::vector<std::pair<uint32_t, uint64_t>> found;
    for (const auto & [id, other] : sessions_) {
        if (other.group == group) {
            found.emplace_back(other.index, id);
        }
    }
    std::sort(found.begin(), found.end());
    std::vector<uint64_t> ids;
    for (const auto & [index, id] : found) {
        ids.push_back(id);
    }
    return ids;
}

// Looks at its own tokens and those of the other texts of its session or group.
Draft Scheduler::look_up(const Runnable & writer, size_t n_read) {
    const RunningTask &         task = *writer.task;
    std::vector<const Tokens *> others;
    for (const uint64_t id : together_with(writer.job->session)) {
        for (const auto & [number, sequence] : cache_.of(id).sequences) {
            if (id != writer.job->session || number != task.task->sequence) {
                others.push_back(&sequence.tokens);
            }
        }
    }
    Draft      draft = tgr::look_up(cache_.sequence(writer.job->session, task.task->sequence).tokens, task.next, others,
                                    2 * Hits::LENGTHS.back(), n_read);
    const auto ends  = [&](llama_token token) { return llama_vocab_is_eog(model_.vocab(), token); };
    draft.tokens.erase(std::find_if(draft.tokens.begin(), draft.tokens.end(), ends), draft.tokens.end());
    return draft;
}

// Not of other sessions or groups: the batches of a text must not depend on them.
Hits & Scheduler::hits_of(const Job & job) {
    Session & session = sessions_.at(job.session);
    return session.group ? session.group->hits : session.hits;
}

Trust & Scheduler::trust_of(const Job & job) {
    Session & session = sessions_.at(job.session);
    return session.group ? session.group->trust : session.trust;
}

// For a batch of written texts alone: what is looked up costs nothing, so the draft model is asked where that does not
// pay.
Scheduler::Asking & Scheduler::plan_drafts() {
    choose_party();
    asking_ = {};
    for (const auto & job : jobs_) {
        for (const auto & task : job->running) {
            task->draft.clear();
            task->draft_is_asked = false;
        }
    }
    const auto   writers = runnable(false);
    const size_t widest =
        std::min({ WIDEST, size_t(llama_n_batch(model_.context())), size_t(llama_n_ubatch(model_.context())),
                   size_t(llama_n_seq_max(model_.context())) });
    if (writers.empty() || !runnable(true).empty() || !cache_.rolls_back() || writers.size() > MOST_TEXTS ||
        widest <= writers.size()) {
        return asking_;
    }
    std::set<uint64_t> parties;
    for (const Runnable & one : writers) {
        parties.insert(together(*one.job));
    }
    const double slowest = parties.size() > 1 ? SLOWEST : INFINITY;
    look_up(writers, widest, slowest);
    const bool found =
        std::any_of(writers.begin(), writers.end(), [](const auto & w) { return !w.task->draft.empty(); });
    if (draft_model_ && !found) {
        if (parties.size() > 1) { // the others wait meanwhile
            const double time = (slowest - 1.0) * times_.of(writers.size());
            asking_.most_read = std::max(LEAST_READ, size_t(time / (draft_model_->price() * times_.reading(1))));
        }
        ask(writers, widest, slowest);
    }
    return asking_;
}

// Tokens after the next one that the task may decode.
static size_t n_left(const RunningTask & task) {
    return task.cells.size() - task.n_placed - 1;
}

void Scheduler::look_up(const std::vector<Runnable> & writers, size_t widest, double slowest) {
    static const std::vector<size_t> lengths(Hits::LENGTHS.begin(), Hits::LENGTHS.end());

    std::vector<Guess> guesses;
    for (const Runnable & one : writers) {
        RunningTask & task = *one.task;
        if (task.task->drafts && task.guesses.short_of()) {
            task.guesses.look(look_up(one, MOST_READ / writers.size()));
        }
        Guess guess{ std::min(task.guesses.n_left(), n_left(task)), {} };
        for (size_t k = 0; k < lengths.size(); ++k) {
            guess.right.push_back(hits_of(*one.job).expected(task.guesses.n_alike(), k));
        }
        guesses.push_back(std::move(guess));
    }
    const auto rows = choose_rows(guesses, lengths, times_, 0.0, widest, slowest);
    for (size_t i = 0; i < writers.size(); ++i) {
        for (size_t n = 0; n < rows[i]; ++n) {
            writers[i].task->draft.push_back(writers[i].task->guesses.guess(n));
        }
    }
}

//
// the draft model
//

// All of a text, with the token that is not decoded yet.
Tokens Scheduler::text_of(const Runnable & one) {
    Tokens tokens = cache_.sequence(one.job->session, one.task->task->sequence).tokens;
    tokens.push_back(one.task->next);
    return tokens;
}

void Scheduler::ask(const std::vector<Runnable> & writers, size_t widest, double slowest) {
    const size_t          wished = model_.params().draft_tokens;
    std::vector<Runnable> some; // that it may be asked for
    for (const Runnable & one : writers) {
        const bool is_free = one.task->task->draft_model && one.task->asked.n_left() == 0 && n_left(*one.task) > 0;
        if (is_free && (wished > 0 || can_pay(times_, draft_model_->price(), widest))) {
            some.push_back(one);
        }
    }
    if (some.empty()) {
        return;
    }
    if (wished > 0) {
        for (const Runnable & one : some) {
            ask(one, std::min({ wished, n_left(*one.task), (widest - writers.size()) / some.size() }), true);
        }
        return;
    }
    std::vector<Guess> guesses(writers.size());
    for (size_t i = 0; i < writers.size(); ++i) {
        const Trust & trust = trust_of(*writers[i].job);
        for (const size_t n : ASKED_LENGTHS) {
            guesses[i].right.push_back(trust.expected(n));
        }
        const RunningTask * task = writers[i].task;
        const bool          pays = trust.is_known() && trust.credit() >= 0 && draft_model_->has_read(task);
        const bool          is_free =
            std::any_of(some.begin(), some.end(), [&](const Runnable & one) { return one.task == task; });
        guesses[i].n_left = pays && is_free ? n_left(*task) : 0;
    }
    const auto rows = choose_rows(guesses, ASKED_LENGTHS, times_, draft_model_->price(), widest, slowest);
    for (size_t i = 0; i < writers.size(); ++i) {
        ask(writers[i], rows[i], true);
    }
    if (asking_.texts.empty()) {
        for (const Runnable & one : some) {
            ask(one, n_to_try(one), false);
        }
    }
}

// Guesses that are compared only, to see whether they would pay; 0 where that costs more than it may. Reading the
// beginning of a text is no loss, as it is read once, unless little of the text is left.
size_t Scheduler::n_to_try(const Runnable & one) {
    const double price = draft_model_->price();
    const double read  = price * times_.reading(draft_model_->n_unread(one.task, text_of(one)));
    const size_t n     = std::min(TRIAL, n_left(*one.task));
    if (draft_model_->has_read(one.task)) {
        return read + price * double(n) <= trust_of(*one.job).credit() ? n : 0;
    }
    const bool begun = draft_model_->follows(one.task);
    const bool pays  = begun || LEAST_TEXT * read <= double(n_left(*one.task));
    return pays && price * double(n) <= trust_of(*one.job).credit() ? n : 0;
}

// `decoded` = the guesses go into the next batch.
void Scheduler::ask(const Runnable & one, size_t n, bool decoded) {
    if (n == 0) {
        return;
    }
    RunningTask & task    = *one.task;
    Tokens        tokens  = text_of(one);
    const size_t  n_cells = tokens.size() + n_left(task);
    if (draft_model_->follow(&task, tokens, n_cells, model_.n_ctx())) {
        task.draft_is_asked = decoded;
        asking_.texts.push_back({ &task, std::move(tokens), n });
        asking_.has_read.push_back(draft_model_->has_read(&task));
        asking_.tasks.push_back(&task);
        asking_.jobs.push_back(one.job);
    }
}

void Scheduler::take_guesses() {
    for (size_t i = 0; i < asking_.texts.size(); ++i) {
        RunningTask &            task = *asking_.tasks[i];
        const DraftModel::Text & text = asking_.texts[i];
        task.output->n_draft_model += int32_t(text.n_decoded);
        n_draft_model_ += text.n_decoded;
        task.asked.take(text.guesses);
        if (task.draft_is_asked) {
            task.draft = text.guesses;
        }
        const size_t n_drawn = std::min(text.guesses.size(), text.n_decoded);
        const size_t n_read  = asking_.has_read[i] ? text.n_decoded - n_drawn : 0;
        const double time    = double(n_drawn) + times_.reading(n_read);
        trust_of(*asking_.jobs[i]).book(-draft_model_->price() * time);
    }
    asking_ = {};
}

//
// what became of them
//

// A row's token was sampled: it says whether the guess at it was right, and that the one before it was.
void Scheduler::book_guess(const Row & row) {
    RunningTask & task = *row.task;
    if (row.draft) {
        book_position(*row.job, task, size_t(row.batch_index));
        --task.n_drafted;
        ++n_accepted_;
    }
    task.guesses.went_on(row.draw.token, hits_of(*row.job));
    if (task.task->draft_model) {
        Trust & trust = trust_of(*row.job);
        trust.written();
        if (const auto right = task.asked.went_on(row.draw.token)) {
            trust.note(*right);
        }
    }
}

// What the draft model's guesses have saved or lost in the batch, as if the text were alone.
void Scheduler::settle(const Job & job, const RunningTask & task) {
    if (const size_t n = task.draft.size(); task.draft_is_asked && n > 0) {
        trust_of(job).book(double(1 + n - task.n_drafted) - times_.of(n + 1));
    }
}

void Scheduler::drop_drafts() {
    for (const auto & job : batch_.jobs) {
        for (const auto & task : job->running) {
            settle(*job, *task);
            if (task->n_drafted > 0) {
                cache_.undo_decode(job->session, task->task->sequence);
                task->output->n_refused += int32_t(task->n_drafted);
                task->n_drafted = 0;
            }
        }
    }
}

void Scheduler::count_drafts(EngineStats & stats) const {
    stats.n_drafted     = n_drafted_;
    stats.n_accepted    = n_accepted_;
    stats.n_draft_model = n_draft_model_;
    stats.n_positions -= n_drafted_ - n_accepted_;
}

} // namespace tgr
