"""Builds: compiles the library of the scaled convolution and adds the addresses of the project."""

from __future__ import annotations

import os
import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

NATIVE = Path("src", "equiscale", "layers", "scaled", "native")


class NativeLibrary(BuildHookInterface):  # type: ignore[type-arg]
    """Puts the library into wheels and editable installations.

    Without a compiler the package still works, in PyTorch operations, and the wheel is one for any
    platform. `EQUISCALE_REQUIRE_COMPILER=1` makes a missing compiler an error, for releases.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and name the wheel after this platform."""
        if self.target_name != "wheel":
            return
        script = runpy.run_path(str(Path(self.root) / NATIVE / "build.py"))
        try:
            script["build"](Path(self.root) / NATIVE)
        except script["CompilerError"] as error:
            if os.environ.get("EQUISCALE_REQUIRE_COMPILER") == "1":
                raise
            self.app.display_warning(f"equiscale is installed without compiled code: {error}")
            return
        platform = script["PLATFORM"].replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"
        build_data["pure_python"] = False


class ProjectAddresses(MetadataHookInterface):
    """Names the repository that a release is built in, which only its workflow knows.

    GitHub sets `GITHUB_SERVER_URL` and `GITHUB_REPOSITORY`, so a fork's builds name the fork.
    """

    def update(self, metadata: dict[str, Any]) -> None:
        """Add `urls`: the paper and, in a workflow, the pages of the repository."""
        metadata["urls"] = {"Paper": "https://arxiv.org/abs/2211.10288"}
        owner, _, name = os.environ.get("GITHUB_REPOSITORY", "").partition("/")
        if not name:
            return
        home = f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{owner}/{name}"
        metadata["urls"] |= {
            "Repository": home,
            "Issues": f"{home}/issues",
            "Changelog": f"{home}/blob/main/CHANGELOG.md",
            "Documentation": f"https://{owner}.github.io/{name}/",
        }
