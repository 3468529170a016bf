#!/usr/bin/env bash
# lm-evaluation-harness with the server, on two small tasks written here: log-likelihoods
# and a generation over /v1/completions, then the generation over /v1/chat/completions.
# First: pip install 'lm-eval[api]'; and in another terminal: tgr-local serve
#
#     examples/server_lm_eval.sh [URL]
set -euo pipefail
if ! command -v lm_eval >/dev/null; then
  echo "this example needs lm-eval; run: pip install 'lm-eval[api]'" >&2
  exit 1
fi
url=${1:-http://127.0.0.1:8080}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export HF_DATASETS_OFFLINE=1 HF_HUB_OFFLINE=1 HF_DATASETS_CACHE=$folder/cache
export OPENAI_API_KEY=${OPENAI_API_KEY:-none}

for i in 1 2 3 4 5 6 7 8; do
  printf '{"question": "%d+%d", "choices": ["%d", "%d"], "answer": 0}\n' \
    $((i + 3)) $((i * 2)) $((i * 3 + 3)) $((i * 3 + 4))
done > "$folder/sums.jsonl"

common="dataset_path: json
dataset_kwargs: {data_files: {test: $folder/sums.jsonl}}
test_split: test"
cat > "$folder/choose.yaml" <<YAML
task: sums_choose
$common
output_type: multiple_choice
doc_to_text: "{{question}} ="
doc_to_choice: choices
doc_to_target: answer
metric_list: [{metric: acc}]
YAML
cat > "$folder/write.yaml" <<YAML
task: sums_write
$common
output_type: generate_until
doc_to_text: "What is {{question}}?"
doc_to_target: "{{choices[answer]}}"
generation_kwargs: {until: ["<|im_end|>"], max_gen_toks: 64, temperature: 0}
filter_list:
  - name: boxed
    filter:
      - {function: regex, regex_pattern: "boxed.(-?\\\\d+)"}
      - {function: take_first}
metric_list: [{metric: exact_match}]
YAML

run() {
  lm_eval run --include_path "$folder" --output_path "$folder/out" "$@"
}
# plain sampling for log-likelihoods: a search before the one token that is written would be wasted
run --model local-completions --tasks sums_choose,sums_write --batch_size 4 --model_args \
  "base_url=$url/v1/completions,model=default:base,tokenizer_backend=remote,num_concurrent=4"
run --model local-chat-completions --tasks sums_write --apply_chat_template --model_args \
  "base_url=$url/v1/chat/completions,model=default:tgr-latent,num_concurrent=4"
