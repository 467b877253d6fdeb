"""What the list of packages in the image lacks: `python -m tools.sbom FILE.cdx.json` adds it.

The tool that made the list reads installed packages: not the libraries that the console brings as
files, nor the version of this package, which is not in pyproject.toml.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from delaybridge import __version__

STATIC = Path(__file__).parents[1] / "delaybridge" / "serve" / "console" / "static"
NPM = {"htmx": "htmx.org", "uPlot": "uplot"}


def completed(bom: dict[str, Any]) -> dict[str, Any]:
    """The same CycloneDX document with the package's version and the console's libraries."""
    root = bom["metadata"]["component"]
    root["version"] = __version__
    root["purl"] = f"pkg:pypi/{root['name']}@{__version__}"
    (graph,) = (each for each in bom["dependencies"] if each["ref"] == root["bom-ref"])
    for library in json.loads((STATIC / "vendor.json").read_text()):
        purl = f"pkg:npm/{NPM[library['name']]}@{library['version']}"
        bom["components"].append(
            {
                "bom-ref": purl,
                "type": "library",
                "name": library["name"],
                "version": library["version"],
                "purl": purl,
                "licenses": [{"license": {"id": library["license"]}}],
            }
        )
        bom["dependencies"].append({"ref": purl})
        graph["dependsOn"].append(purl)
    return bom


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(json.dumps(completed(json.loads(file.read_text())), indent=2) + "\n")
