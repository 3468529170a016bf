"""The embedded code model `tgr-mini-code`: its data, vocabulary, training run and measurements.

```
answers.py   answers of the code assistant in its three formats
data.py      tokenized samples: repairs, second rounds, fill-in-the-middle, drills
merges.py    learns merges.txt, the merges of its vocabulary
train.py     the training run
export.py    the GGUF file
agreement.py the file against the PyTorch model
evaluate.py  Pass@k on unseen problems, by the tests in the sandbox
```
"""
