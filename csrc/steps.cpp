// The scheduler's steps: which tokens a batch holds, and what becomes of its results.

#include "scheduler.h"

#include <map>
#include <string>

namespace tgr {

Batch & Scheduler::schedule() {
    batch_.clear();
    llama_context * context       = model_.context();
    const size_t    n_outputs_max = llama_n_seq_max(context);
    const size_t    n_batch       = llama_n_batch(context); // llama.cpp may have lowered it to n_ctx

    const auto each = [&](auto && visit) {
        for (const auto & job : jobs_) {
            if (held_back(*job)) {
                continue;
            }
            for (const auto & task : job->running) {
                if (!task->done) {
                    visit(*job, *task);
                }
            }
        }
    };
    for (const auto & job : jobs_) {
        for (const auto & task : job->running) {
            task->n_in_batch = 0;
        }
    }
    const auto add = [&](RunningTask & task, llama_token token, size_t position, bool output) {
        const Task & spec = *task.task;
        if (task.n_in_batch++ == 0) {
            task.first_in_batch = batch_.size();
            batch_.injections.emplace_back(spec.sequence, spec.injection);
            batch_.states |= spec.states || spec.feed_states != FeedStates::none;
            batch_.norms |= spec.norms && task.feeds();
        }
        batch_.tokens.push_back(token);
        batch_.positions.push_back(llama_pos(position));
        batch_.sequences.push_back(spec.sequence);
        batch_.output.push_back(output);
    };

    each([&](Job & job, RunningTask & task) {
        if (task.feeds() || batch_.size() >= n_batch || batch_.rows.size() >= n_outputs_max) {
            return;
        }
        const Sequence & sequence = cache_.sequence(job.session, task.task->sequence);
        batch_.rows.push_back({ &job, &task, int32_t(batch_.size()), -1, true });
        add(task, task.next, sequence.cells.size(), true);
    });
    each([&](Job & job, RunningTask & task) {
        const Task &     spec     = *task.task;
        const size_t     n_feed   = spec.feed.size();
        const Sequence & sequence = cache_.sequence(job.session, spec.sequence);
        // residual norms of the last layer exist for output tokens only: up to 32 of them, evenly spaced
        const size_t stride = (n_feed + 31) / 32;
        for (size_t i = task.n_fed; i < n_feed && batch_.size() < n_batch; ++i) {
            const bool last   = i + 1 == n_feed;
            const bool sample = last && spec.n_generate > 0;
            const bool read   = sample || spec.feed_states == FeedStates::all ||
                                (last && spec.feed_states == FeedStates::last) || (!last && spec.feed_logprobs);
            const bool output = read || (spec.norms && i % stride == 0);
            if (output && batch_.rows.size() >= n_outputs_max) {
                break;
            }
            if (output) {
                batch_.rows.push_back({ &job, &task, int32_t(batch_.size()), int32_t(i), sample });
            }
            add(task, spec.feed[i], sequence.cells.size() + i - task.n_fed, output);
        }
    });
    return batch_;
}

void Scheduler::take_cells() {
    std::map<uint64_t, int32_t> group_of;
    batch_.cells.resize(batch_.size());
    batch_.group.resize(batch_.size());
    for (const auto & job : jobs_) {
        Reservation & reservation = cache_.of(job->session);
        for (const auto & task : job->running) {
            task->new_cells.clear();
            task->new_cells.reserve(task->n_in_batch);
            for (size_t i = task->first_in_batch; i < task->first_in_batch + task->n_in_batch; ++i) {
                task->new_cells.push_back(reservation.take_cell());
                batch_.cells[i] = reservation.cells[task->new_cells.back()];
                batch_.group[i] = group_of.emplace(job->session, int32_t(group_of.size())).first->second;
            }
        }
    }
    batch_.groups.resize(group_of.size());
    for (const auto & [session, group] : group_of) {
        batch_.groups[group] = cache_.of(session).group();
    }
}

void Scheduler::undo() {
    for (const auto & job : jobs_) {
        for (const auto & task : job->running) {
            if (!task->new_cells.empty()) {
                cache_.undo_decode(job->session, task->task->sequence, task->new_cells);
                task->new_cells.clear();
            }
        }
    }
}

void Scheduler::fail(int32_t status) {
    const auto error = std::make_exception_ptr(Error("llama_decode failed with status " + std::to_string(status)));
    const auto jobs  = jobs_;
    for (const auto & job : jobs) {
        if (job->in_batch) {
            finish(job, error);
        }
    }
}

void Scheduler::book_decode() {
    for (const auto & job : jobs_) {
        Reservation & reservation = cache_.of(job->session);
        for (const auto & task : job->running) {
            auto & cells = reservation.sequences.at(task->task->sequence).cells;
            cells.insert(cells.end(), task->new_cells.begin(), task->new_cells.end());
            task->new_cells.clear();
            job->cells_to_take -= task->n_in_batch;
            reservation.promised -= task->n_in_batch;
            task->output->n_decoded += int32_t(task->n_in_batch);
            if (task->feeds()) {
                if (task->task->norms) {
                    book_norms(*task);
                }
                task->n_fed += task->n_in_batch;
            }
        }
    }
}

void Scheduler::book_norms(const RunningTask & task) {
    for (size_t i = 0; i < task.n_in_batch; ++i) {
        for (int32_t layer = 0; layer < model_.info().n_layer; ++layer) {
            const float norm = model_.norm(layer, int32_t(task.first_in_batch + i));
            if (norm >= 0.0f) {
                (*task.output->norm_sums.values)[layer] += norm;
                (*task.output->norm_counts.values)[layer] += 1.0;
            }
        }
    }
}

void Scheduler::book_rows() {
    const auto jobs = jobs_; // a job that fails here must outlive its rows
    for (Row & row : batch_.rows) {
        const auto it =
            std::find_if(jobs_.begin(), jobs_.end(), [&](const auto & job) { return job.get() == row.job; });
        if (it == jobs_.end()) {
            continue;
        }
        if (row.error) {
            finish(*it, row.error);
            continue;
        }
        book_row(row);
    }
    // tasks that only feed are done with their last token
    for (const auto & job : jobs_) {
        for (const auto & task : job->running) {
            if (task->task->n_generate == 0 && task->n_fed == task->task->feed.size()) {
                task->done = true;
            }
        }
    }
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
        const std::string piece = model_.detokenize({ token }, false);
        task.tail += piece;
        stop = ends_within(task.tail, piece.size(), spec.stop);
        if (task.tail.size() > 2 * task.tail_most + 1024) { // seldom: it moves all that remains
            task.tail.erase(0, task.tail.size() - task.tail_most);
        }
    }
    if (stop || output.tokens.values->size() >= size_t(spec.n_generate)) {
        output.finish = stop ? Finish::stop : Finish::length;
        task.done     = true;
    }
    row.job->add_new(task.index, token);
}

void Scheduler::finish_done() {
    const auto jobs = jobs_;
    for (const auto & job : jobs) {
        if (std::all_of(job->running.begin(), job->running.end(), [](const auto & task) { return task->done; })) {
            finish(job, nullptr);
        } else if (job->in_batch) {
            job->notify();
        }
    }
}

} // namespace tgr
