#!/usr/bin/env python
"""What an installation with all extras for users consists of: .ci/sbom.py writes

- dist/requirements.txt: the packages that pip takes today, and the one with the source of
  llama.cpp, with their hashes, for pip-audit;
- dist/tgr-local.cdx.json: a CycloneDX list of these packages and what the extensions consist of.

Needs cyclonedx-bom, pybind11 and a package index.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "csrc"))

import fetch_llama_cpp

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = "server,eval,hub,plot,ray,steer,desktop,code"  # not the developers' dev and model
SCHEMA = SchemaVersion.V1_6


def resolved() -> list[str]:
    """A line ``name==version --hash=sha256:...`` for each package."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        pip += ["--dry-run", "--ignore-installed", "--report", str(report)]
        subprocess.run([*pip, f"{ROOT}[{EXTRAS}]"], check=True)
        found = json.loads(report.read_text(encoding="utf-8"))["install"]
    packages = [(one["metadata"], one["download_info"]) for one in found]
    return sorted(
        f"{about['name'].lower()}=={about['version']} "
        f"--hash=sha256:{source['archive_info']['hashes']['sha256']}"
        for about, source in packages
        if about["name"] != "tgr-local"
    )


def llama_cpp_python() -> str:
    """Its version."""
    cmake = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
    (version,) = re.findall(r"^set\(LLAMA_CPP_PYTHON_VERSION (.*)\)$", cmake, re.MULTILINE)
    return str(version)


def compiled_in() -> list[dict[str, Any]]:
    """What the extensions have inside, and what a wheel has beside them, as components."""
    version = llama_cpp_python()
    hashes = [{"alg": "SHA-256", "content": fetch_llama_cpp.SHA256[version]}]
    package = f"pkg:pypi/llama-cpp-python@{version}"
    source = {
        "type": "library",
        "name": "llama.cpp",
        "bom-ref": "llama.cpp",
        "version": f"of llama-cpp-python {version}",
        "description": "With its ggml and nlohmann/json; patched by csrc/patches/llama.cpp.patch",
        "licenses": [{"license": {"id": "MIT"}}],
        "externalReferences": [
            {
                "type": "source-distribution",
                "url": f"https://pypi.org/project/llama-cpp-python/{version}/",
                "hashes": hashes,
            }
        ],
        "pedigree": {
            "ancestors": [{"type": "library", "name": "llama-cpp-python", "version": version,
                           "bom-ref": package, "purl": package}]
        },
    }  # fmt: skip
    headers = importlib.metadata.version("pybind11")
    purl = f"pkg:pypi/pybind11@{headers}"
    return [
        source,
        {"type": "library", "name": "pybind11", "version": headers, "bom-ref": purl, "purl": purl},
        {
            "type": "library",
            "name": "libgomp",
            "bom-ref": "libgomp",
            "description": "GCC's OpenMP, which auditwheel copies from the machine that builds",
            "licenses": [{"expression": "GPL-3.0-or-later WITH GCC-exception-3.1"}],
        },
    ]


def main() -> None:
    dist = ROOT / "dist"
    dist.mkdir(exist_ok=True)
    requirements, bom = dist / "requirements.txt", dist / "tgr-local.cdx.json"
    requirements.write_text("\n".join(resolved()) + "\n", encoding="utf-8")
    cyclonedx = [sys.executable, "-m", "cyclonedx_py", "requirements", str(requirements)]
    cyclonedx += ["--pyproject", str(ROOT / "pyproject.toml"), "--output-reproducible"]
    cyclonedx += [
        "--spec-version",
        SCHEMA.to_version(),
        "--output-format",
        "JSON",
        "--output-file",
        str(bom),
    ]
    subprocess.run(cyclonedx, check=True)

    listed = json.loads(bom.read_text(encoding="utf-8"))
    listed["components"] += compiled_in()
    listed["dependencies"] += [{"ref": one["bom-ref"]} for one in compiled_in()]
    text = json.dumps(listed, indent=2, sort_keys=True) + "\n"
    if error := JsonStrictValidator(SCHEMA).validate_str(text):
        sys.exit(f"the list is not valid CycloneDX: {error}")
    bom.write_text(text, encoding="utf-8")
    version = llama_cpp_python()
    with requirements.open("a", encoding="utf-8") as file:
        file.write(f"llama-cpp-python=={version} --hash=sha256:{fetch_llama_cpp.SHA256[version]}\n")
    print(f"{len(listed['components'])} components: {bom.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
