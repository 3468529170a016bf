#!/usr/bin/env bash
# Requests to a server with curl. First, in another terminal: tgr-local serve
#
#     examples/server_curl.sh [URL] [KEY]
set -euo pipefail
url=${1:-http://127.0.0.1:8080}
key=(-H "Authorization: Bearer ${2:-none}" -H "Content-Type: application/json")

# one answer; "tgr" at its end has its cost
curl --fail-with-body --silent --show-error "$url/v1/chat/completions" "${key[@]}" -d '{
  "messages": [{"role": "user", "content": "What is 12 + 30?"}],
  "max_tokens": 64
}'
echo

# a stream, by plain sampling: the method follows the colon in the model's name
curl --fail-with-body --silent --show-error --no-buffer "$url/v1/chat/completions" "${key[@]}" -d '{
  "model": "default:base",
  "messages": [{"role": "user", "content": "What is 12 + 30?"}],
  "max_tokens": 64,
  "stream": true
}'
