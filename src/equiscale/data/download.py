"""Fetch published dataset files from their record, checked."""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path
from typing import Any

from equiscale.core.errors import DownloadError, OptionError, StorageError
from equiscale.core.files import file_hash
from equiscale.data.catalog import CARDS, dataset_path

RECORD_VARIABLE = "EQUISCALE_RECORD"
RECORD_ID = "6578038"
RECORD_PAGE = f"https://zenodo.org/records/{RECORD_ID}"
RECORD_URL = f"https://zenodo.org/api/records/{RECORD_ID}"
TIMEOUT_SECONDS = 30.0
RETRIES = 3
_CHUNK = 1 << 16
_STRANGE = (ValueError, KeyError, TypeError, AttributeError)  # of a checksum or the record


def download_dataset(
    name: str,
    root: str | Path | None = None,
    *,
    force: bool = False,
    progress: bool = False,
    retries: int = RETRIES,
    timeout: float = TIMEOUT_SECONDS,
) -> Path:
    """Fetch a published dataset into the cache directory and return its file.

    A file that is already there and equals the published one is kept. The record is
    Zenodo's, or the mirror that `$EQUISCALE_RECORD` names.

    Args:
        name: A published dataset of the catalog.
        root: Where to put it; None means the cache directory.
        force: Replace a file of that name that is not the published one.
        progress: Show a bar on stderr.
        retries: How often a failed transfer is started again.
        timeout: Seconds without an answer after which a transfer counts as failed.

    Raises:
        DownloadError: It cannot be fetched, or is not what the record promises. No file is left.
    """
    import requests

    if not CARDS[name].published:
        raise OptionError(
            f"dataset {name!r} is not published; run `equiscale data build "
            f"{CARDS[name].build_hint}`"
        )
    path = dataset_path(name, root)
    _check_directory(path)
    try:
        return _fetch(path, force, progress, retries, timeout)
    except (DownloadError, StorageError):
        raise
    except (requests.RequestException, *_STRANGE) as error:
        raise DownloadError(
            f"cannot download {path.name} ({error}). By hand: get {path.name} from {RECORD_PAGE} "
            f"and put it into {path.parent}; or build it: equiscale data build "
            f"{CARDS[name].build_hint}"
        ) from error
    except OSError as error:
        raise StorageError.from_os_error("write", path, error) from error


def _check_directory(path: Path) -> None:
    """Raise now what could not be written later, rather than after asking the network."""
    for parent in path.parents:
        if parent.is_dir():
            return
        if parent.exists():
            raise StorageError(
                f"cannot write {path}: {parent} is not a directory; "
                "name another one with $EQUISCALE_DATA"
            )


def _fetch(path: Path, force: bool, progress: bool, retries: int, timeout: float) -> Path:
    import pooch
    from tqdm import tqdm

    pooch.get_logger().setLevel("WARNING")  # it would announce each file on stderr
    url, checksum = _find_file(_read_record(retries, timeout), path.name)
    algorithm, _, digest = checksum.partition(":")
    if path.exists() and not force and file_hash(path, algorithm) != digest:
        raise DownloadError(
            f"{path} is there but is not the published file (built here, perhaps); "
            "add --force to replace it"
        )
    keeper = pooch.create(
        path=path.parent,
        base_url="",
        registry={path.name: checksum},
        urls={path.name: url},
        retry_if_failed=retries,
    )
    with tqdm(desc=path.name, unit="B", unit_scale=True, disable=not progress) as bar:
        return Path(keeper.fetch(path.name, downloader=_Transfer(timeout, bar)))


class _Transfer:
    """Transfers one file, as pooch asks for it; each attempt starts anew."""

    def __init__(self, timeout: float, bar: Any) -> None:  # noqa: ANN401 - tqdm is untyped
        self.timeout = timeout
        self.bar = bar

    def __call__(self, url: str, output_file: str, keeper: object) -> None:
        import requests

        headers = _identification()
        with requests.get(url, headers=headers, timeout=self.timeout, stream=True) as response:
            response.raise_for_status()
            self.bar.reset(total=int(response.headers.get("Content-Length", 0)) or None)
            with Path(output_file).open("wb") as file:
                for chunk in response.iter_content(_CHUNK):
                    file.write(chunk)
                    self.bar.update(len(chunk))


def _identification() -> dict[str, str]:
    """Return the header that says who asks: Zenodo refuses the default one of Python."""
    version = importlib.metadata.version("equiscale")
    return {"User-Agent": f"equiscale/{version} (+https://arxiv.org/abs/2211.10288)"}


def _read_record(retries: int, timeout: float) -> dict[str, Any]:
    """Ask the record's service for its list of files."""
    import requests
    from requests.adapters import HTTPAdapter
    from urllib3.util.retry import Retry

    url = os.environ.get(RECORD_VARIABLE) or RECORD_URL
    with requests.Session() as session:
        patience = Retry(retries, backoff_factor=0.5, status_forcelist=(429, 500, 502, 503, 504))
        for scheme in ("https://", "http://"):
            session.mount(scheme, HTTPAdapter(max_retries=patience))
        response = session.get(url, headers=_identification(), timeout=timeout)
        response.raise_for_status()
        record: dict[str, Any] = response.json()
    return record


def _find_file(record: dict[str, Any], name: str) -> tuple[str, str]:
    """Return address and checksum of a file, in the words of the old or the present interface."""
    for entry in record["files"]:
        if name == entry.get("key", entry.get("filename")):
            checksum = entry["checksum"]
            url = entry.get("links", {}).get("self") or f"{RECORD_PAGE}/files/{name}?download=1"
            return url, checksum if ":" in checksum else f"md5:{checksum}"
    raise ValueError(f"the record has no file {name}")
